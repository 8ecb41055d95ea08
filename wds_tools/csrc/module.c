/* wds_tools._native: what Python sees of the compiled path. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdlib.h>
#include <string.h>

#include "batch.h"

/* Buffers of a list of bytes-like objects. */
typedef struct {
    Py_buffer *buffers;
    File *files;
    Py_ssize_t count;
} Files;

static void release(Files *files)
{
    for (Py_ssize_t i = 0; files->buffers && i < files->count; i++)
        if (files->buffers[i].obj)
            PyBuffer_Release(&files->buffers[i]);
    free(files->buffers);
    free(files->files);
}

/* None becomes a file without data. Returns -1, with an exception set, where an object is something else. */
static int take(PyObject *list, Files *files)
{
    files->count = PyList_Size(list);
    files->buffers = calloc((size_t)files->count + 1, sizeof *files->buffers);
    files->files = calloc((size_t)files->count + 1, sizeof *files->files);
    if (!files->buffers || !files->files) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < files->count; i++) {
        PyObject *item = PySequence_GetItem(list, i); /* owned: without a GIL another thread may change the list */
        int failed = !item || (item != Py_None && PyObject_GetBuffer(item, &files->buffers[i], PyBUF_SIMPLE));
        Py_XDECREF(item); /* the buffer has a reference of its own */
        if (failed)
            return -1;
        files->files[i] = (File){files->buffers[i].buf, (size_t)files->buffers[i].len};
    }
    return 0;
}

static int is_size(int height, int width)
{
    return height > 0 && width > 0 && height <= 1 << 16 && width <= 1 << 16;
}

/* Returns whether a buffer holds `count` items of `size` bytes, where C may read them. */
static int holds(const Py_buffer *buffer, Py_ssize_t count, size_t size, size_t alignment)
{
    return (size_t)buffer->len / size == (size_t)count && (size_t)buffer->len % size == 0 &&
           (uintptr_t)buffer->buf % alignment == 0;
}

static PyObject *make_into(
    Files *files, const Py_buffer *places, Py_buffer *out, int height, int width, Py_ssize_t max_pixels,
    const Py_buffer *timings)
{
    if (!is_size(height, width) || max_pixels < 1 || !holds(places, files->count, sizeof(Place), _Alignof(Place)) ||
        !holds(out, files->count, 3 * (size_t)height * (size_t)width, 1) ||
        (timings->buf && !holds(timings, 1, sizeof(Timings), _Alignof(Timings)))) {
        PyErr_SetString(PyExc_ValueError, "places, out or timings have another size than the number of files asks for");
        return NULL;
    }
    PyObject *done = PyBytes_FromStringAndSize(NULL, files->count);
    if (!done)
        return NULL;
    char *flags = PyBytes_AsString(done);
    Py_BEGIN_ALLOW_THREADS
    make_batch(
        files->files, places->buf, (size_t)files->count, height, width, (size_t)max_pixels, out->buf, flags,
        timings->buf);
    Py_END_ALLOW_THREADS
    return done;
}

static PyObject *render_jpegs(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *list, *timed, *done = NULL;
    Py_buffer places, out, timings = {0};
    int height, width;
    Py_ssize_t max_pixels;
    Files files = {0};
    if (!PyArg_ParseTuple(
            arguments, "O!y*w*iinO", &PyList_Type, &list, &places, &out, &height, &width, &max_pixels, &timed))
        return NULL;
    if (timed == Py_None || !PyObject_GetBuffer(timed, &timings, PyBUF_WRITABLE)) {
        if (!take(list, &files))
            done = make_into(&files, &places, &out, height, width, max_pixels, &timings);
        release(&files);
    }
    if (timings.obj)
        PyBuffer_Release(&timings);
    PyBuffer_Release(&out);
    PyBuffer_Release(&places);
    return done;
}

static PyObject *place_into(const Files *files, Py_ssize_t offset, Py_buffer *out, int height, int width)
{
    size_t bytes = 3 * (size_t)height * (size_t)width, start = (size_t)offset;
    int sound = is_size(height, width) && offset >= 0 && holds(out, files->count, bytes, 1);
    for (Py_ssize_t i = 0; sound && i < files->count; i++)
        sound = files->files[i].data && files->files[i].size >= start && files->files[i].size - start == bytes;
    if (!sound) {
        PyErr_SetString(PyExc_ValueError, "the files are not arrays of this size behind a header of this length");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < files->count; i++)
        to_planes(files->files[i].data + start, height, width, (uint8_t *)out->buf + (size_t)i * bytes);
    Py_END_ALLOW_THREADS
    return Py_NewRef(Py_None);
}

static PyObject *place_pixels(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *list, *done = NULL;
    Py_buffer out;
    int height, width;
    Py_ssize_t offset;
    Files files = {0};
    if (!PyArg_ParseTuple(arguments, "O!nw*ii", &PyList_Type, &list, &offset, &out, &height, &width))
        return NULL;
    if (!take(list, &files))
        done = place_into(&files, offset, &out, height, width);
    release(&files);
    PyBuffer_Release(&out);
    return done;
}

static PyMethodDef methods[] = {
    {"render_jpegs", render_jpegs, METH_VARARGS,
     "render_jpegs(files, places, out, height, width, max_pixels, timings) -> bytes, 1 for each that was made"},
    {"place_pixels", place_pixels, METH_VARARGS, "place_pixels(files, offset, out, height, width)"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* nothing here is shared by two calls */
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "wds_tools._native",
    .m_doc = "Pictures into a batch, without the GIL; see native.py.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
