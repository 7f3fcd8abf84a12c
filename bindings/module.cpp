// The Python module over cuda/: addresses, sizes, a dtype and a stream handle in; a launch, or an exception, out.
//
// No torch headers: built in seconds, and one build serves every torch version. The caller (compare.operations) owns
// every buffer and has validated it; nothing here allocates, copies or synchronises.
#include <pybind11/pybind11.h>

#include <stdexcept>
#include <string>

#include "binding.h"

namespace py = pybind11;

std::vector<Launcher>& launchers() {
    static std::vector<Launcher> table;
    return table;
}

static int dtype_index(const std::string& name) {
    std::string known;
    for (int i = 0; i < 3; ++i) {
        if (name == DTYPES[i]) return i;
        known += (i ? ", " : "") + std::string(DTYPES[i]);
    }
    throw py::type_error("dtype: got " + name + ", wanted one of " + known);
}

// The text of an error: what CUDA says of it and, in the CPU model, what the model saw.
static std::string describe(cudaError_t error) {
    std::string text = std::string(cudaGetErrorString(error)) + " (" + cudaGetErrorName(error) + ")";
#ifdef CPU_MODEL
    const std::string seen = cpu_model::last_error_text();
    if (!seen.empty()) text += ": " + seen;
#endif
    return text;
}

static void launch(const Launcher& launcher, const std::string& dtype, const py::args& given) {
    constexpr int MOST = 16;
    const int wanted = launcher.n_parameters + 1;  // and the stream
    if (wanted > MOST || int(given.size()) != wanted)
        throw py::type_error(std::string(launcher.name) + ": got " + std::to_string(given.size()) +
                             " arguments after dtype, wanted " + std::to_string(wanted) + ": " + launcher.parameters +
                             ", stream");
    long long arguments[MOST];
    for (int i = 0; i < wanted; ++i) arguments[i] = py::cast<long long>(given[i]);
    const int index = dtype_index(dtype);

    // An error that someone else left behind would be taken for ours. Without a driver, this is the first to say so.
    if (const cudaError_t earlier = cudaGetLastError(); earlier != cudaSuccess)
        throw std::runtime_error(std::string(launcher.name) +
                                 " was not launched, CUDA had failed before: " + describe(earlier));
    if (const cudaError_t error = launcher.launch(index, arguments); error != cudaSuccess)
        throw std::runtime_error(std::string(launcher.name) + ": " + describe(error));
}

PYBIND11_MODULE(MODULE_NAME, module) {
    module.attr("executor") = EXECUTOR;    // "gpu" or "cpu_model"
    module.attr("built_for") = BUILT_FOR;  // the architectures, or "cpu"
    py::dict parameters;                   // of each launcher, in order, without dtype and stream
    for (const Launcher& launcher : launchers()) {
        parameters[launcher.name] = py::str(launcher.parameters).attr("split")(", ");
        const std::string doc = std::string(launcher.name) + "(dtype, " + launcher.parameters + ", stream)";
        module.def(
            launcher.name,
            [launcher](const std::string& dtype, const py::args& given) { launch(launcher, dtype, given); },
            py::arg("dtype"), doc.c_str());
    }
    module.attr("parameters") = parameters;
#ifdef CPU_MODEL
    module.def("set_thread_order", &cpu_model::set_thread_order, py::arg("descending"),
               "Run the threads of a block in ascending (False) or descending (True) order.");
#endif
}
