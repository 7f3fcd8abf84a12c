// A program that calls one launcher, for a sanitizer build; sanitize.py builds it and runs it:
//
//     LAUNCHER DTYPE ascending|descending DELETED_BARRIER ARGUMENT...
//
// DTYPE is an index of DTYPES, DELETED_BARRIER a line, or 0. An argument is a number, or an array as input:DTYPE:COUNT
// output:DTYPE:COUNT, or zeros:COUNT (64-bit words), which malloc gives exactly its size, so that AddressSanitizer
// knows where it ends.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "binding.h"

std::vector<Launcher>& launchers() {
    static std::vector<Launcher> table;
    return table;
}

namespace {

struct Output {
    void* data;
    std::size_t bytes;
};

template <class T>
void* make_input(long long n) {
    T* data = static_cast<T*>(std::malloc(n * sizeof(T)));
    for (long long i = 0; i < n; ++i) data[i] = static_cast<float>(i * 37 % 101) / 8 - 6;  // -6 to 6.5, mixed
    return data;
}

// The bytes of all outputs.
std::string run(const Launcher& launcher, int dtype, const std::vector<long long>& arguments,
                const std::vector<Output>& outputs, int deleted_barrier) {
    for (const Output& output : outputs) std::memset(output.data, 0xFF, output.bytes);
    cpu_model::delete_barrier(deleted_barrier);
    if (launcher.launch(dtype, arguments.data()) != cudaSuccess) {
        std::fprintf(stderr, "cpu_model: %s\n", cpu_model::last_error_text());
        std::exit(1);
    }
    std::string result;
    for (const Output& output : outputs) result.append(static_cast<const char*>(output.data), output.bytes);
    return result;
}

}  // namespace

int main(int count, char** text) {
    for (const Launcher& launcher : launchers()) {
        if (count != 5 + launcher.n_parameters || std::strcmp(launcher.name, text[1]) != 0) continue;
        std::vector<long long> arguments;
        std::vector<Output> outputs;
        for (int i = 5; i < count; ++i) {
            int type;
            long long n = 0;
            void* data = nullptr;
            if (std::sscanf(text[i], "input:%d:%lld", &type, &n) == 2) {
                data = type == 0   ? make_input<float>(n)
                       : type == 1 ? make_input<__half>(n)
                                   : make_input<__nv_bfloat16>(n);
            } else if (std::sscanf(text[i], "output:%d:%lld", &type, &n) == 2) {
                const std::size_t bytes = n * (type == 0 ? 4 : 2);
                data = std::malloc(bytes);
                outputs.push_back({data, bytes});
            } else if (std::sscanf(text[i], "zeros:%lld", &n) == 1) {
                data = std::calloc(n, 8);
            }
            arguments.push_back(data ? reinterpret_cast<long long>(data) : std::atoll(text[i]));
        }
        arguments.push_back(0);  // the stream

        cpu_model::set_thread_order(std::strcmp(text[3], "descending") == 0);
        const int dtype = std::atoi(text[2]), deleted_barrier = std::atoi(text[4]);
        const std::string right = run(launcher, dtype, arguments, outputs, 0);
        if (deleted_barrier && run(launcher, dtype, arguments, outputs, deleted_barrier) != right)
            std::fprintf(stderr, "cpu_model: wrong values without the barrier\n");
        return 0;
    }
    std::fprintf(stderr, "sanitize_main: no launcher %s with %d arguments\n", count > 1 ? text[1] : "", count - 5);
    return 2;
}
