// Runs a launcher without a GPU and prints each launch: kernel, its readable name, threads, dynamic shared bytes.
//
// compare.compiled links it with bindings/<stem>.cu in place of the CUDA runtime. It is the other side of what
// nvcc's host code calls for `kernel<<<grid, block, shared, stream>>>(...)`, so the launcher itself says how it would
// launch; nothing runs on a device. A runtime function that is not here is a link error that names it.
#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "binding.h"

std::vector<Launcher>& launchers() {
    static std::vector<Launcher> table;
    return table;
}

// Host function -> name of the kernel in the device code. A function: it is filled before main.
static std::map<const void*, std::string>& kernels() {
    static std::map<const void*, std::string> names;
    return names;
}

static struct {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} configuration;

extern "C" {

void** __cudaRegisterFatBinary(void*) { return nullptr; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
    kernels()[host] = name;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
    configuration = {grid, block, shared, stream};
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
    *grid = configuration.grid;
    *block = configuration.block;
    *shared = configuration.shared;
    *static_cast<cudaStream_t*>(stream) = configuration.stream;
    return cudaSuccess;
}

// What a GPU of the target answers: COMPUTE_CAPABILITY is its number, as 90.
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    *value = attribute == cudaDevAttrComputeCapabilityMajor ? COMPUTE_CAPABILITY / 10 : 100;
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* host, dim3, dim3 block, void**, size_t shared, cudaStream_t) {
    const std::string& name = kernels().at(host);
    char* readable = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, nullptr);
    std::printf("%s\t%s\t%u\t%zu\n", name.c_str(), readable ? readable : name.c_str(), block.x * block.y * block.z,
                shared);
    std::free(readable);
    return cudaSuccess;
}
// Newer host code first asks for a handle; ours is the host function itself.
cudaError_t __cudaGetKernel(void** kernel, const void* host) {
    *kernel = const_cast<void*>(host);
    return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                               cudaStream_t stream) {
    return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* host, void** arguments) {
    return cudaLaunchKernel(host, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes,
                            config->stream);
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }

}  // extern "C"

// launch_log                             prints every launcher and its parameters
// launch_log LAUNCHER DTYPE ARGUMENT...  launches; DTYPE by its name, the last argument is the stream
int main(int count, char** text) {
    std::vector<long long> arguments;
    for (int i = 3; i < count; ++i) arguments.push_back(std::atoll(text[i]));
    for (const Launcher& launcher : launchers()) {
        if (count == 1) std::printf("%s\t%s\n", launcher.name, launcher.parameters);
        if (int(arguments.size()) != launcher.n_parameters + 1 || text[1] != std::string(launcher.name)) continue;
        for (int dtype = 0; dtype < 3; ++dtype)
            if (text[2] == std::string(DTYPES[dtype])) return launcher.launch(dtype, arguments.data());
    }
    return count > 1;  // no such launcher, dtype or number of arguments
}
