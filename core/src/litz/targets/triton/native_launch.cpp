// What launches a CUDA kernel, as a Python extension module: the type `Launch`, whose calls take the kernel's arguments.
//
// It knows Python and nothing else: `cuLaunchKernel` comes as an address, torch's device and stream as two functions to
// call. `litz.targets.triton.native_launch` builds it.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <cstddef>
#include <cstdint>

namespace {

using LaunchKernel = int (*)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                             unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **parameters,
                             void **extra);

constexpr Py_ssize_t MOST_PARAMETERS = 4096;  // a kernel takes 32764 bytes of them; the slots lie on the stack

struct Launch {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    LaunchKernel launch_kernel;
    void *function;
    bool fixed;  // the grid is; else it is the first argument
    unsigned grid[3], threads, shared;
    Py_ssize_t arguments, parameters;
    long device;
    PyObject *device_number, *device_of, *stream_of, *recover;
    PyObject *masks;      // bytes: of each argument the bits that must be 0; null where there are none
    PyObject *otherwise;  // called instead, with the same arguments, where they are not
};

bool read_extent(PyObject *value, unsigned *grid) {
    if (!PyLong_Check(value)) {
        PyErr_Format(PyExc_TypeError, "the grid must be an int, or three, not %.100s", Py_TYPE(value)->tp_name);
        return false;
    }
    const long long number = PyLong_AsLongLong(value);
    if (number == -1 && PyErr_Occurred()) return false;
    if (number < 0 || number > UINT32_MAX) {
        PyErr_Format(PyExc_OverflowError, "a grid of %lld blocks", number);
        return false;
    }
    *grid = static_cast<unsigned>(number);
    return true;
}

// Blocks along x, or a tuple of those along x, y and z. False, with an exception, if it is neither.
bool read_grid(PyObject *value, unsigned grid[3]) {
    grid[1] = grid[2] = 1;
    if (!PyTuple_Check(value)) return read_extent(value, grid);
    if (PyTuple_GET_SIZE(value) != 3) {
        PyErr_Format(PyExc_TypeError, "a grid has 3 extents, not %zd", PyTuple_GET_SIZE(value));
        return false;
    }
    for (int n = 0; n < 3; n++)
        if (!read_extent(PyTuple_GET_ITEM(value, n), &grid[n])) return false;
    return true;
}

PyObject *wrong_count(const Launch *self, Py_ssize_t given) {
    const Py_ssize_t wanted = self->arguments + !self->fixed;
    return PyErr_Format(PyExc_TypeError, "the kernel takes %zd arguments, %zd were given", wanted, given);
}

// recover(status, grid, *values): it says what went wrong, or launches after all.
PyObject *call_recover(const Launch *self, int status, const unsigned grid[3], PyObject *const *values) {
    const bool flat = grid[1] == 1 && grid[2] == 1;
    PyObject *numbers[] = {PyLong_FromLong(status), flat ? PyLong_FromUnsignedLong(grid[0])
                                                         : Py_BuildValue("(III)", grid[0], grid[1], grid[2])};
    PyObject *result = nullptr;
    if (numbers[0] && numbers[1]) {
        auto given = static_cast<PyObject **>(__builtin_alloca((2 + self->arguments) * sizeof(PyObject *)));
        given[0] = numbers[0];
        given[1] = numbers[1];
        for (Py_ssize_t n = 0; n < self->arguments; n++) given[2 + n] = values[n];
        result = PyObject_Vectorcall(self->recover, given, 2 + self->arguments, nullptr);
    }
    Py_XDECREF(numbers[0]);
    Py_XDECREF(numbers[1]);
    return result;
}

// `Launch(...)(*values)`, or `(grid, *values)`. What it needs while it runs lies on the stack: threads may call at once.
PyObject *call(PyObject *object, PyObject *const *given, size_t flags, PyObject *names) {
    const auto self = reinterpret_cast<const Launch *>(object);
    const Py_ssize_t count = PyVectorcall_NARGS(flags);
    if (names && PyTuple_GET_SIZE(names)) {
        PyErr_SetString(PyExc_TypeError, "a kernel takes no keyword arguments");
        return nullptr;
    }
    if (count != self->arguments + !self->fixed) return wrong_count(self, count);
    PyObject *const *values = given;
    unsigned grid[] = {self->grid[0], self->grid[1], self->grid[2]};
    if (!self->fixed && !read_grid(*values++, grid)) return nullptr;

    // Every argument has a slot of 8 bytes: a 32-bit parameter reads the lower half of its. Those after them are null.
    auto slots = static_cast<uint64_t *>(__builtin_alloca((self->parameters + 1) * sizeof(uint64_t)));
    auto places = static_cast<void **>(__builtin_alloca((self->parameters + 1) * sizeof(void *)));
    for (Py_ssize_t n = 0; n < self->arguments; n++) {
        if (!PyLong_Check(values[n])) {
            const char *type = Py_TYPE(values[n])->tp_name;
            return PyErr_Format(PyExc_TypeError, "argument %zd of the kernel must be an int, not %.100s", n, type);
        }
        slots[n] = PyLong_AsUnsignedLongLongMask(values[n]);  // of an int: never an error
        places[n] = &slots[n];
    }
    for (Py_ssize_t n = self->arguments; n < self->parameters; n++) {
        slots[n] = 0;
        places[n] = &slots[n];
    }
    if (self->masks) {
        const auto masks = reinterpret_cast<const unsigned char *>(PyBytes_AS_STRING(self->masks));
        uint64_t wrong = 0;
        for (Py_ssize_t n = 0; n < self->arguments; n++) wrong |= slots[n] & masks[n];
        if (wrong) return PyObject_Vectorcall(self->otherwise, given, count, nullptr);
    }

    PyObject *device = PyObject_CallNoArgs(self->device_of);
    if (!device) return nullptr;
    const long current = PyLong_AsLong(device);
    Py_DECREF(device);
    if (current == -1 && PyErr_Occurred()) return nullptr;
    if (current != self->device) return call_recover(self, 0, grid, values);
    PyObject *number = PyObject_CallOneArg(self->stream_of, self->device_number);
    if (!number) return nullptr;
    void *stream = PyLong_AsVoidPtr(number);
    Py_DECREF(number);
    if (!stream && PyErr_Occurred()) return nullptr;

    int status;
    // It blocks while the queue of launches is full, and the values have been read: no other thread need wait.
    Py_BEGIN_ALLOW_THREADS
    status = self->launch_kernel(self->function, grid[0], grid[1], grid[2], self->threads, 1, 1, self->shared, stream,
                                 places, nullptr);
    Py_END_ALLOW_THREADS
    if (status) return call_recover(self, status, grid, values);
    Py_RETURN_NONE;
}

PyObject *make(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static const char *names[] = {"launch_kernel", "function",  "threads",   "shared",  "arguments",
                                  "parameters",    "device",    "device_of", "stream_of", "recover",
                                  "grid",          "masks",     "otherwise", nullptr};
    unsigned long long launch_kernel, function;
    unsigned threads, shared;
    Py_ssize_t arguments, parameters;
    long device;
    PyObject *device_of, *stream_of, *recover, *grid = Py_None, *masks = Py_None, *otherwise = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KKIInnlOOO|$OOO", const_cast<char **>(names), &launch_kernel,
                                     &function, &threads, &shared, &arguments, &parameters, &device, &device_of,
                                     &stream_of, &recover, &grid, &masks, &otherwise))
        return nullptr;
    if (arguments < 0 || parameters < arguments || parameters > MOST_PARAMETERS)
        return PyErr_Format(PyExc_ValueError, "%zd arguments for a kernel of %zd parameters", arguments, parameters);
    if (masks != Py_None && (!PyBytes_Check(masks) || PyBytes_GET_SIZE(masks) != arguments || otherwise == Py_None)) {
        PyErr_SetString(PyExc_ValueError, "masks are a byte for each argument, and need `otherwise`");
        return nullptr;
    }
    unsigned blocks[] = {0, 1, 1};
    if (grid != Py_None && !read_grid(grid, blocks)) return nullptr;
    PyObject *device_number = PyLong_FromLong(device);
    auto self = device_number ? reinterpret_cast<Launch *>(type->tp_alloc(type, 0)) : nullptr;
    if (!self) {
        Py_XDECREF(device_number);
        return nullptr;
    }
    self->vectorcall = call;
    self->launch_kernel = reinterpret_cast<LaunchKernel>(static_cast<uintptr_t>(launch_kernel));
    self->function = reinterpret_cast<void *>(static_cast<uintptr_t>(function));
    self->fixed = grid != Py_None;
    for (int n = 0; n < 3; n++) self->grid[n] = blocks[n];
    self->threads = threads;
    self->shared = shared;
    self->arguments = arguments;
    self->parameters = parameters;
    self->device = device;
    self->device_number = device_number;
    self->device_of = Py_NewRef(device_of);
    self->stream_of = Py_NewRef(stream_of);
    self->recover = Py_NewRef(recover);
    self->masks = masks == Py_None ? nullptr : Py_NewRef(masks);
    self->otherwise = masks == Py_None ? nullptr : Py_NewRef(otherwise);
    return reinterpret_cast<PyObject *>(self);
}

// No tp_clear, as a tuple has none: it never changes, so a cycle has something else in it that does.
int traverse(PyObject *object, visitproc visit, void *arg) {
    const auto self = reinterpret_cast<Launch *>(object);
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->device_of);
    Py_VISIT(self->stream_of);
    Py_VISIT(self->recover);
    Py_VISIT(self->otherwise);
    return 0;
}

void dealloc(PyObject *object) {
    const auto self = reinterpret_cast<Launch *>(object);
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    PyObject *held[] = {self->device_number, self->device_of, self->stream_of,
                        self->recover,       self->masks,     self->otherwise};
    for (PyObject *one : held) Py_XDECREF(one);
    type->tp_free(object);
    Py_DECREF(type);
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Launch, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_new, reinterpret_cast<void *>(make)},
    {Py_tp_call, reinterpret_cast<void *>(PyVectorcall_Call)},
    {Py_tp_traverse, reinterpret_cast<void *>(traverse)},
    {Py_tp_dealloc, reinterpret_cast<void *>(dealloc)},
    {Py_tp_members, members},
    {0, nullptr},
};

PyType_Spec spec = {
    "litz_native_launch.Launch", sizeof(Launch), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE, slots,
};

int execute(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, nullptr);
    if (!type) return -1;
    const int status = PyModule_AddType(module, reinterpret_cast<PyTypeObject *>(type));
    Py_DECREF(type);
    return status;
}

PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, reinterpret_cast<void *>(execute)},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},  // a Launch never changes once it is made
#endif
    {0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "litz_native_launch", nullptr, 0, nullptr, module_slots, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit_litz_native_launch() { return PyModuleDef_Init(&definition); }
