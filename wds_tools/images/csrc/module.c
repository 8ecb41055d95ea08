/* wds_tools.images._native: what Python sees of the compiled path. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdlib.h>
#include <string.h>

#include "batch.h"
#include "kernels.h"
#include "decoder.h"
#include "transcode.h"

/* Buffers of a list of bytes-like objects. */
typedef struct {
    Py_buffer *buffers;
    ByteSpan *files;
    Py_ssize_t count;
} ByteSpans;

static void release(ByteSpans *files)
{
    for (Py_ssize_t i = 0; files->buffers && i < files->count; i++)
        if (files->buffers[i].obj)
            PyBuffer_Release(&files->buffers[i]);
    free(files->buffers);
    free(files->files);
}

/* None becomes a file without data. Returns -1, with an exception set, where an object is
   something else. */
static int take(PyObject *list, ByteSpans *files)
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
        files->files[i] = (ByteSpan){files->buffers[i].buf, (size_t)files->buffers[i].len};
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
    ByteSpans *files, const Py_buffer *crops, Py_buffer *out, int height, int width, Py_ssize_t max_pixels,
    const Py_buffer *timings)
{
    if (!is_size(height, width) || max_pixels < 1 ||
        !holds(crops, files->count, sizeof(CropGeometry), _Alignof(CropGeometry)) ||
        !holds(out, files->count, 3 * (size_t)height * (size_t)width, 1) ||
        (timings->buf && !holds(timings, 1, sizeof(Timings), _Alignof(Timings)))) {
        PyErr_SetString(PyExc_ValueError, "the size of crops, out or timings does not match the number of files");
        return NULL;
    }
    PyObject *done = PyBytes_FromStringAndSize(NULL, files->count);
    if (!done)
        return NULL;
    char *flags = PyBytes_AsString(done);
    Py_BEGIN_ALLOW_THREADS
    make_batch(
        files->files, crops->buf, (size_t)files->count, height, width, (size_t)max_pixels, out->buf, flags,
        timings->buf);
    Py_END_ALLOW_THREADS
    return done;
}

static PyObject *render_jpegs(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *list, *timed, *done = NULL;
    Py_buffer crops, out, timings = {0};
    int height, width;
    Py_ssize_t max_pixels;
    ByteSpans files = {0};
    if (!PyArg_ParseTuple(
            arguments, "O!y*w*iinO", &PyList_Type, &list, &crops, &out, &height, &width, &max_pixels, &timed))
        return NULL;
    if (timed == Py_None || !PyObject_GetBuffer(timed, &timings, PyBUF_WRITABLE)) {
        if (!take(list, &files))
            done = make_into(&files, &crops, &out, height, width, max_pixels, &timings);
        release(&files);
    }
    if (timings.obj)
        PyBuffer_Release(&timings);
    PyBuffer_Release(&out);
    PyBuffer_Release(&crops);
    return done;
}

static PyObject *copy_into(const ByteSpans *files, Py_ssize_t offset, Py_buffer *out, int height, int width)
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

static PyObject *copy_pixels(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *list, *done = NULL;
    Py_buffer out;
    int height, width;
    Py_ssize_t offset;
    ByteSpans files = {0};
    if (!PyArg_ParseTuple(arguments, "O!nw*ii", &PyList_Type, &list, &offset, &out, &height, &width))
        return NULL;
    if (!take(list, &files))
        done = copy_into(&files, offset, &out, height, width);
    release(&files);
    PyBuffer_Release(&out);
    return done;
}

/* Returns what was decoded of a plane: its width and its samples, row by row. */
static PyObject *plane_of(const Box *box)
{
    Py_ssize_t width = box->last_column - box->first_column, height = box->last_row - box->first_row;
    PyObject *samples = PyBytes_FromStringAndSize(NULL, width * height);
    for (Py_ssize_t row = 0; samples && row < height; row++)
        memcpy(
            PyBytes_AsString(samples) + row * width,
            box->samples + (size_t)(row + box->first_row) * box->stride + box->first_column, (size_t)width);
    return samples ? Py_BuildValue("(nN)", width, samples) : NULL;
}

static PyObject *decode_region(Decoder *decoder, const Picture *picture)
{
    Planes planes;
    if (decode_picture(decoder, picture, &planes))
        return Py_NewRef(Py_None);
    PyObject *list = PyList_New(planes.planes);
    for (int c = 0; list && c < planes.planes; c++) {
        PyObject *plane = plane_of(&planes.box[c]);
        if (!plane || PyList_SetItem(list, c, plane)) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

static PyObject *decode_jpeg(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer data;
    Region region;
    int scale_denominator;
    if (!PyArg_ParseTuple(
            arguments, "y*(iiii)i", &data, &region.left, &region.top, &region.width, &region.height,
            &scale_denominator))
        return NULL;
    PyObject *planes = NULL;
    Decoder *decoder = decoder_new();
    if (!decoder)
        PyErr_NoMemory();
    else if (region.left < 0 || region.top < 0 || region.width < 1 || region.height < 1 ||
             (scale_denominator != 1 && scale_denominator != 2 && scale_denominator != 4 && scale_denominator != 8))
        PyErr_SetString(PyExc_ValueError, "the region is empty, or scale_denominator is not 1, 2, 4 or 8");
    else {
        Picture picture = {data.buf, (size_t)data.len, region, region, scale_denominator, 0};
        decoder_limit(decoder, (size_t)1 << 32);
        planes = decode_region(decoder, &picture);
    }
    if (decoder)
        decoder_free(decoder);
    PyBuffer_Release(&data);
    return planes;
}

static PyObject *transcode_jpeg(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer data;
    Py_ssize_t max_pixels;
    int restart, longest;
    size_t size;
    if (!PyArg_ParseTuple(arguments, "y*iin", &data, &restart, &longest, &max_pixels))
        return NULL;
    PyObject *file = NULL;
    Transcoder *transcoder = NULL;
    if (restart < 1 || restart > 0xFFFF || longest < 9 || longest > 16 || max_pixels < 1)
        PyErr_SetString(PyExc_ValueError, "restart is not 1 to 65535, longest not 9 to 16, or max_pixels not positive");
    else if (!(transcoder = take_transcoder()))
        PyErr_NoMemory();
    else {
        const uint8_t *made;
        Py_BEGIN_ALLOW_THREADS
        made = transcode(transcoder, data.buf, (size_t)data.len, restart, longest, (size_t)max_pixels, &size);
        Py_END_ALLOW_THREADS
        file = made ? PyBytes_FromStringAndSize((const char *)made, (Py_ssize_t)size) : Py_NewRef(Py_None);
    }
    if (transcoder)
        give_back_transcoder(transcoder);
    PyBuffer_Release(&data);
    return file;
}

static PyObject *simd(PyObject *module, PyObject *arguments)
{
    (void)module;
    int is_wanted = -1;
    if (!PyArg_ParseTuple(arguments, "|p", &is_wanted))
        return NULL;
    if (is_wanted >= 0)
        use_simd(is_wanted);
    return PyUnicode_FromString(kernels()->simd);
}

static PyMethodDef methods[] = {
    {"render_jpegs", render_jpegs, METH_VARARGS,
     "render_jpegs(files, crops, out, height, width, max_pixels, timings) -> bytes, 1 for each that was made"},
    {"decode_jpeg", decode_jpeg, METH_VARARGS,
     "decode_jpeg(file, (left, top, width, height), scale_denominator) -> [(width, samples)] of each plane, or None"},
    {"transcode_jpeg", transcode_jpeg, METH_VARARGS,
     "transcode_jpeg(file, restart, longest, max_pixels) -> the file with restart markers, or None"},
    {"simd", simd, METH_VARARGS, "simd(is_wanted=True) -> the SIMD that is used: avx2, neon or none"},
    {"copy_pixels", copy_pixels, METH_VARARGS, "copy_pixels(files, offset, out, height, width)"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* what calls share, they exchange atomically */
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "wds_tools.images._native",
    .m_doc = "Pictures into a batch, without the GIL; see native.py.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
