/* The Python module wds_tools.images._native. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdlib.h>
#include <string.h>

#include "batch.h"
#include "cluster.h"
#include "convert.h"
#include "decoder.h"
#include "huffman.h"
#include "kernels.h"
#include "transcode.h"

#define MAX_CROPS 1024 /* of an image */

/* The buffers of a list of bytes-like objects. */
typedef struct {
    Py_buffer *buffers;
    ByteSpan *spans;
    Py_ssize_t count;
} Files;

static void release_files(Files *files)
{
    for (Py_ssize_t i = 0; files->buffers && i < files->count; i++)
        if (files->buffers[i].obj)
            PyBuffer_Release(&files->buffers[i]);
    free(files->buffers);
    free(files->spans);
}

/* Gets the buffers of a list; None becomes a span without data. Returns 0, or -1 with an exception
   set. The caller calls release_files() in both cases. */
static int get_files(PyObject *list, Files *files)
{
    files->count = PyList_Size(list);
    files->buffers = calloc((size_t)files->count + 1, sizeof *files->buffers);
    files->spans = calloc((size_t)files->count + 1, sizeof *files->spans);
    if (!files->buffers || !files->spans) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < files->count; i++) {
        /* a new reference: without a GIL another thread could change the list */
        PyObject *item = PySequence_GetItem(list, i);
        int failed = !item || (item != Py_None && PyObject_GetBuffer(item, &files->buffers[i], PyBUF_SIMPLE));
        Py_XDECREF(item); /* the buffer has its own reference */
        if (failed)
            return -1;
        files->spans[i] = (ByteSpan){files->buffers[i].buf, (size_t)files->buffers[i].len};
    }
    return 0;
}

static int is_valid_size(int height, int width)
{
    return height > 0 && width > 0 && height <= 1 << 16 && width <= 1 << 16;
}

/* Returns whether a buffer has exactly `count` items of `size` bytes, and the given alignment. */
static int has_items(const Py_buffer *buffer, Py_ssize_t count, size_t size, size_t alignment)
{
    return (size_t)buffer->len / size == (size_t)count && (size_t)buffer->len % size == 0 &&
           (uintptr_t)buffer->buf % alignment == 0;
}

/* The writable buffers of a list, one for each crop of each image. */
typedef struct {
    Py_buffer *buffers;
    Output *outputs;
    Py_ssize_t count;
} Outputs;

static void release_outputs(Outputs *outputs)
{
    for (Py_ssize_t i = 0; outputs->buffers && i < outputs->count; i++)
        if (outputs->buffers[i].obj)
            PyBuffer_Release(&outputs->buffers[i]);
    free(outputs->buffers);
    free(outputs->outputs);
}

/* Returns whether the items of a buffer of bytes follow each other without gaps. */
static int is_contiguous(const Py_buffer *buffer)
{
    Py_ssize_t stride = 1;
    for (int i = buffer->ndim - 1; i >= 0; stride *= buffer->shape[i--])
        if (buffer->shape[i] > 1 && buffer->strides[i] != stride)
            return 0;
    return 1;
}

/* Describes the pixels of a buffer: without gaps, or a rectangle [3][height][width] in larger planes. Returns 0, or -1
   if it is neither. */
static int get_output(const Py_buffer *buffer, int height, int width, Output *output)
{
    size_t plane = (size_t)height * (size_t)width;
    if (!is_valid_size(height, width) || buffer->itemsize != 1 || !has_items(buffer, 1, 3 * plane, 1))
        return -1;
    *output = (Output){buffer->buf, height, width, (size_t)width, plane};
    if (is_contiguous(buffer))
        return 0;
    if (buffer->ndim != 3 || buffer->shape[0] != 3 || buffer->shape[1] != height || buffer->shape[2] != width ||
        buffer->strides[0] < 1 || buffer->strides[1] < 1 || buffer->strides[2] != 1)
        return -1;
    output->plane_stride = (size_t)buffer->strides[0];
    output->row_stride = (size_t)buffer->strides[1];
    return 0;
}

/* Gets the buffers of a list. `sizes` has the height and width of each. Returns 0, or -1 with an
   exception set. The caller calls release_outputs() in both cases. */
static int get_outputs(PyObject *list, const Py_buffer *sizes, Outputs *outputs)
{
    outputs->count = PyList_Size(list);
    if (!has_items(sizes, outputs->count, 2 * sizeof(int32_t), _Alignof(int32_t))) {
        PyErr_Format(
            PyExc_ValueError, "sizes (%zd bytes) does not have the height and width of %zd outputs", sizes->len,
            outputs->count);
        return -1;
    }
    outputs->buffers = calloc((size_t)outputs->count + 1, sizeof *outputs->buffers);
    outputs->outputs = calloc((size_t)outputs->count + 1, sizeof *outputs->outputs);
    if (!outputs->buffers || !outputs->outputs) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < outputs->count; i++) {
        PyObject *item = PySequence_GetItem(list, i);
        int failed = !item || PyObject_GetBuffer(item, &outputs->buffers[i], PyBUF_WRITABLE | PyBUF_STRIDES);
        Py_XDECREF(item); /* the buffer has its own reference */
        if (failed)
            return -1;
        const int32_t *size = (const int32_t *)sizes->buf + 2 * i;
        if (get_output(&outputs->buffers[i], size[0], size[1], &outputs->outputs[i])) {
            PyErr_Format(
                PyExc_ValueError, "output %zd (%zd bytes) does not have %d x %d pixels (height x width) of 3 bytes", i,
                outputs->buffers[i].len, size[0], size[1]);
            return -1;
        }
    }
    return 0;
}

/* Returns whether each of `count` images has the same number of crops. */
static int are_valid_outputs(const Outputs *outputs, Py_ssize_t count)
{
    if (!count)
        return !outputs->count;
    return outputs->count && outputs->count % count == 0 && outputs->count / count <= MAX_CROPS;
}

/* Checks the arguments of render_jpegs() and renders the batch. `timings->buf` may be NULL. */
static PyObject *render_files(
    Files *files, const Py_buffer *crops, const Outputs *outputs, Py_ssize_t max_pixels, const Py_buffer *timings)
{
    if (max_pixels < 1 || !are_valid_outputs(outputs, files->count) ||
        !has_items(crops, outputs->count, sizeof(CropGeometry), _Alignof(CropGeometry)) ||
        (timings->buf && !has_items(timings, 1, sizeof(Timings), _Alignof(Timings)))) {
        PyErr_Format(
            PyExc_ValueError,
            "the size or alignment of crops (%zd bytes), timings, or one of %zd outputs does not match %zd images, "
            "or max_pixels (%zd) is not positive",
            crops->len, outputs->count, files->count, max_pixels);
        return NULL;
    }
    PyObject *done = PyBytes_FromStringAndSize(NULL, outputs->count);
    if (!done || !files->count)
        return done;
    char *flags = PyBytes_AsString(done);
    size_t count = (size_t)files->count, crops_per_image = (size_t)outputs->count / count;
    Py_BEGIN_ALLOW_THREADS
    render_batch(
        files->spans, crops->buf, count, outputs->outputs, crops_per_image, (size_t)max_pixels, flags, timings->buf);
    Py_END_ALLOW_THREADS
    return done;
}

static PyObject *render_jpegs(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *list, *output_list, *timings_object, *done = NULL;
    Py_buffer crops, sizes, timings = {0};
    Py_ssize_t max_pixels;
    Files files = {0};
    Outputs outputs = {0};
    if (!PyArg_ParseTuple(
            arguments, "O!y*O!y*nO", &PyList_Type, &list, &crops, &PyList_Type, &output_list, &sizes, &max_pixels,
            &timings_object))
        return NULL;
    if (timings_object == Py_None || !PyObject_GetBuffer(timings_object, &timings, PyBUF_WRITABLE)) {
        if (!get_files(list, &files) && !get_outputs(output_list, &sizes, &outputs))
            done = render_files(&files, &crops, &outputs, max_pixels, &timings);
        release_outputs(&outputs);
        release_files(&files);
    }
    if (timings.obj)
        PyBuffer_Release(&timings);
    PyBuffer_Release(&sizes);
    PyBuffer_Release(&crops);
    return done;
}

/* Checks the arguments of copy_pixels() and copies the pixels. */
static PyObject *copy_files(const Files *files, Py_ssize_t offset, Py_buffer *out, int height, int width)
{
    size_t bytes = 3 * (size_t)height * (size_t)width, start = (size_t)offset;
    int is_valid = is_valid_size(height, width) && offset >= 0 && has_items(out, files->count, bytes, 1);
    for (Py_ssize_t i = 0; is_valid && i < files->count; i++)
        is_valid = files->spans[i].data && files->spans[i].size >= start && files->spans[i].size - start == bytes;
    if (!is_valid) {
        PyErr_Format(
            PyExc_ValueError,
            "the size of a file or of out (%zd bytes) does not match %zd files with a header of %zd bytes and "
            "%d x %d pixels (height x width) of 3 bytes",
            out->len, files->count, offset, height, width);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < files->count; i++)
        to_planes(files->spans[i].data + start, height, width, (uint8_t *)out->buf + (size_t)i * bytes);
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
    Files files = {0};
    if (!PyArg_ParseTuple(arguments, "O!nw*ii", &PyList_Type, &list, &offset, &out, &height, &width))
        return NULL;
    if (!get_files(list, &files))
        done = copy_files(&files, offset, &out, height, width);
    release_files(&files);
    PyBuffer_Release(&out);
    return done;
}

static int is_valid_change(const HsvChange *change)
{
    return change->hue >= -0.5f && change->hue <= 0.5f && change->saturation >= 0 && change->saturation <= 2 &&
           change->value >= 0 && change->value <= 2; /* false for NaN */
}

static int is_moderate(float x)
{
    return x >= -1e6f && x <= 1e6f; /* false for NaN */
}

static PyObject *change_hsv(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer pixels, changes;
    PyObject *done = NULL;
    if (!PyArg_ParseTuple(arguments, "w*y*", &pixels, &changes))
        return NULL;
    size_t images = (size_t)changes.len / sizeof(HsvChange), plane = images ? (size_t)pixels.len / images / 3 : 0;
    const HsvChange *change = changes.buf;
    int is_valid = has_items(&changes, (Py_ssize_t)images, sizeof(HsvChange), _Alignof(HsvChange)) &&
                   (size_t)pixels.len == 3 * plane * images;
    for (size_t i = 0; is_valid && i < images; i++)
        is_valid = is_valid_change(&change[i]);
    if (!is_valid)
        PyErr_Format(
            PyExc_ValueError,
            "%zd bytes of pixels are not images with three planes each, or %zd bytes are not three numbers for each, of "
            "-0.5 to 0.5, 0 to 2 and 0 to 2",
            pixels.len, changes.len);
    else {
        uint8_t *image = pixels.buf;
        Py_BEGIN_ALLOW_THREADS
        for (size_t i = 0; i < images; i++, image += 3 * plane)
            kernels()->change_hsv(image, image + plane, image + 2 * plane, plane, &change[i]);
        Py_END_ALLOW_THREADS
        done = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&changes);
    PyBuffer_Release(&pixels);
    return done;
}

static PyObject *blend_colors(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer pixels;
    Blend blend;
    if (!PyArg_ParseTuple(arguments, "w*fff", &pixels, &blend.gain, &blend.offset, &blend.grey))
        return NULL;
    size_t plane = (size_t)pixels.len / 3;
    uint64_t sum = 0;
    int is_valid = (size_t)pixels.len == 3 * plane && plane > 0 && is_moderate(blend.gain) &&
                   is_moderate(blend.offset) && is_moderate(blend.grey);
    if (is_valid) {
        uint8_t *image = pixels.buf;
        Py_BEGIN_ALLOW_THREADS
        sum = kernels()->blend_colors(image, image + plane, image + 2 * plane, plane, &blend);
        Py_END_ALLOW_THREADS
    } else
        PyErr_Format(
            PyExc_ValueError, "%zd bytes of pixels are not three planes, or a number is not from -1e6 to 1e6",
            pixels.len);
    PyBuffer_Release(&pixels);
    return is_valid ? PyFloat_FromDouble((double)sum / (double)plane) : NULL;
}

static PyObject *convert_pixels(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer pixels, values, out;
    Py_ssize_t images;
    int is_interleaved;
    PyObject *done = NULL;
    if (!PyArg_ParseTuple(arguments, "y*ny*w*p", &pixels, &images, &values, &out, &is_interleaved))
        return NULL;
    ConversionTable table = {values.buf, (size_t)values.len / (3 * 256)};
    size_t count = images > 0 ? (size_t)pixels.len / (size_t)images / 3 : 0, bytes = table.value_bytes;
    if (images < 0 || (size_t)pixels.len != (size_t)images * 3 * count || values.len % (3 * 256) ||
        (bytes != 2 && bytes != 4 && bytes != 8) || out.len % (Py_ssize_t)bytes ||
        out.len / (Py_ssize_t)bytes != pixels.len)
        PyErr_Format(
            PyExc_ValueError,
            "%zd bytes of pixels are not %zd images of three planes, %zd bytes are not a table of 3 x 256 values of 2, "
            "4 or 8 bytes, or %zd bytes of out are not one value for each pixel",
            pixels.len, images, values.len, out.len);
    else {
        Py_BEGIN_ALLOW_THREADS
        for (size_t i = 0; i < (size_t)images; i++)
            convert_image(
                (const uint8_t *)pixels.buf + i * 3 * count, count, &table, is_interleaved,
                (char *)out.buf + i * 3 * count * bytes);
        Py_END_ALLOW_THREADS
        done = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&out);
    PyBuffer_Release(&values);
    PyBuffer_Release(&pixels);
    return done;
}

/* Returns (width, samples) of the valid part of a plane; `samples` are bytes in row order. */
static PyObject *build_plane(const PlaneBox *box)
{
    Py_ssize_t width = box->last_column - box->first_column, height = box->last_row - box->first_row;
    PyObject *samples = PyBytes_FromStringAndSize(NULL, width * height);
    for (Py_ssize_t row = 0; samples && row < height; row++)
        memcpy(
            PyBytes_AsString(samples) + row * width,
            box->samples + (size_t)(row + box->first_row) * box->stride + box->first_column, (size_t)width);
    return samples ? Py_BuildValue("(nN)", width, samples) : NULL;
}

/* Returns a list of the planes of an image, or None if it cannot be decoded here. */
static PyObject *build_planes(Decoder *decoder, const Image *image)
{
    Planes planes;
    if (decode_image(decoder, image, &planes))
        return Py_NewRef(Py_None);
    PyObject *list = PyList_New(planes.count);
    for (int c = 0; list && c < planes.count; c++) {
        PyObject *plane = build_plane(&planes.box[c]);
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
        PyErr_Format(
            PyExc_ValueError,
            "invalid region (left %d, top %d, width %d, height %d) or scale_denominator (%d, not 1, 2, 4 or 8)",
            region.left, region.top, region.width, region.height, scale_denominator);
    else {
        Image image = {data.buf, (size_t)data.len, region, region, scale_denominator, 0, 0, 0};
        decoder_set_limit(decoder, (size_t)1 << 32);
        planes = build_planes(decoder, &image);
    }
    if (decoder)
        decoder_free(decoder);
    PyBuffer_Release(&data);
    return planes;
}

/* Returns (hash, brightness, contrast, sharpness), or None without a signature. */
static PyObject *build_signature(const Signature *signature)
{
    if (!signature)
        return Py_NewRef(Py_None);
    return Py_BuildValue(
        "(Kddd)", (unsigned long long)signature->hash, signature->brightness, signature->contrast, signature->sharpness);
}

static int is_orientation(int orientation)
{
    if (orientation >= 1 && orientation <= 8)
        return 1;
    PyErr_Format(PyExc_ValueError, "orientation must be 1 to 8; got %d", orientation);
    return 0;
}

static PyObject *transcode_jpeg(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer data;
    Py_ssize_t max_pixels;
    int restart_interval, max_code_length, orientation = 1, unsigned_file = 1;
    size_t size;
    Signature signature;
    if (!PyArg_ParseTuple(
            arguments, "y*iin|i", &data, &restart_interval, &max_code_length, &max_pixels, &orientation))
        return NULL;
    PyObject *result = NULL;
    Transcoder *transcoder = NULL;
    if (restart_interval < 1 || restart_interval > 0xFFFF || max_code_length < 9 ||
        max_code_length > MAX_CODE_LENGTH || max_pixels < 1)
        PyErr_Format(
            PyExc_ValueError,
            "restart_interval must be 1 to 65535, max_code_length 9 to 16, and max_pixels positive; got %d, %d and %zd",
            restart_interval, max_code_length, max_pixels);
    else if (!is_orientation(orientation))
        ;
    else if (!(transcoder = acquire_transcoder()))
        PyErr_NoMemory();
    else {
        const uint8_t *written;
        Py_BEGIN_ALLOW_THREADS
        written = transcode(
            transcoder, data.buf, (size_t)data.len, restart_interval, max_code_length, (size_t)max_pixels, &size);
        if (written)
            unsigned_file = sign_transcoded(transcoder, orientation, &signature);
        Py_END_ALLOW_THREADS
        result = written ? Py_BuildValue(
                               "(y#N)", (const char *)written, (Py_ssize_t)size,
                               build_signature(unsigned_file ? NULL : &signature))
                         : Py_NewRef(Py_None);
    }
    if (transcoder)
        release_transcoder(transcoder);
    PyBuffer_Release(&data);
    return result;
}

static PyObject *sign_jpeg(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer data;
    Py_ssize_t max_pixels;
    int orientation, failed;
    Signature signature;
    if (!PyArg_ParseTuple(arguments, "y*in", &data, &orientation, &max_pixels))
        return NULL;
    PyObject *result = NULL;
    Transcoder *transcoder = NULL;
    if (max_pixels < 1)
        PyErr_Format(PyExc_ValueError, "max_pixels must be positive; got %zd", max_pixels);
    else if (!is_orientation(orientation))
        ;
    else if (!(transcoder = acquire_transcoder()))
        PyErr_NoMemory();
    else {
        Py_BEGIN_ALLOW_THREADS
        failed = sign_file(transcoder, data.buf, (size_t)data.len, orientation, (size_t)max_pixels, &signature);
        Py_END_ALLOW_THREADS
        result = build_signature(failed ? NULL : &signature);
    }
    if (transcoder)
        release_transcoder(transcoder);
    PyBuffer_Release(&data);
    return result;
}

static PyObject *sign_pixels(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer pixels;
    int height, width, orientation, failed;
    Signature signature;
    Luma luma = {0};
    if (!PyArg_ParseTuple(arguments, "y*iii", &pixels, &height, &width, &orientation))
        return NULL;
    PyObject *result = NULL;
    if (height < 1 || width < 1 || !has_items(&pixels, height, (size_t)width, 1))
        PyErr_Format(
            PyExc_ValueError, "%zd bytes of pixels are not %d x %d (height x width)", pixels.len, height, width);
    else if (is_orientation(orientation)) {
        Py_BEGIN_ALLOW_THREADS
        failed =
            reduce_pixels(pixels.buf, height, width, &luma) || compute_signature(&luma, orientation, &signature);
        luma_free(&luma);
        Py_END_ALLOW_THREADS
        result = failed ? PyErr_NoMemory() : build_signature(&signature);
    }
    PyBuffer_Release(&pixels);
    return result;
}

/* Returns whether no hash has a parent after itself. */
static int are_parents(const uint32_t *parents, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++)
        if (parents[i] > (uint32_t)i)
            return 0;
    return 1;
}

static PyObject *join_clusters_of(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer hashes, parents;
    int distance, first, step, failed;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(arguments, "y*iiiw*", &hashes, &distance, &first, &step, &parents))
        return NULL;
    Py_ssize_t count = hashes.len / (Py_ssize_t)sizeof(uint64_t);
    if (count > INT32_MAX || !has_items(&hashes, count, sizeof(uint64_t), _Alignof(uint64_t)) ||
        !has_items(&parents, count, sizeof(uint32_t), _Alignof(uint32_t)) || !are_parents(parents.buf, count) ||
        distance < 1 || distance > MAX_DISTANCE || first < 0 || step < 1)
        PyErr_Format(
            PyExc_ValueError,
            "%zd bytes of hashes and %zd of parents do not match, a parent is too large, or distance (%d), first (%d) "
            "or step (%d) is",
            hashes.len, parents.len, distance, first, step);
    else {
        Py_BEGIN_ALLOW_THREADS
        failed = join_clusters(hashes.buf, (uint32_t)count, distance, first, step, parents.buf);
        Py_END_ALLOW_THREADS
        result = failed ? PyErr_NoMemory() : Py_NewRef(Py_None);
    }
    PyBuffer_Release(&parents);
    PyBuffer_Release(&hashes);
    return result;
}

static PyObject *simd(PyObject *module, PyObject *arguments)
{
    (void)module;
    int enable = -1;
    if (!PyArg_ParseTuple(arguments, "|p", &enable))
        return NULL;
    if (enable >= 0)
        use_simd(enable);
    return PyUnicode_FromString(kernels()->simd);
}

/* The best max_code_length for transcode_jpeg(): longer codes do not fit into the lookup table of
   the decoder. */
static int add_constants(PyObject *module)
{
    return PyModule_AddIntConstant(module, "AC_LOOKUP_BITS", LOOKUP_BITS);
}

static PyMethodDef methods[] = {
    {"render_jpegs", render_jpegs, METH_VARARGS,
     "render_jpegs(files, crops, outputs, sizes, max_pixels, timings) -> bytes: 1 for each rendered crop, or 0"},
    {"decode_jpeg", decode_jpeg, METH_VARARGS,
     "decode_jpeg(file, (left, top, width, height), scale_denominator) -> [(width, samples)] of each plane, or None"},
    {"transcode_jpeg", transcode_jpeg, METH_VARARGS,
     "transcode_jpeg(file, restart_interval, max_code_length, max_pixels, orientation=1) -> (the new file, its "
     "signature or None), or None"},
    {"sign_jpeg", sign_jpeg, METH_VARARGS,
     "sign_jpeg(file, orientation, max_pixels) -> (hash, brightness, contrast, sharpness), or None"},
    {"sign_pixels", sign_pixels, METH_VARARGS,
     "sign_pixels(luma, height, width, orientation) -> (hash, brightness, contrast, sharpness)"},
    {"join_clusters", join_clusters_of, METH_VARARGS,
     "join_clusters(hashes, distance, first, step, parents): joins the clusters of hashes that differ in few bits"},
    {"simd", simd, METH_VARARGS,
     "simd([enable]) -> the instruction set in use: avx2, neon or none. Changes it if `enable` is given."},
    {"copy_pixels", copy_pixels, METH_VARARGS,
     "copy_pixels(files, offset, out, height, width): copies interleaved pixels to planes"},
    {"change_hsv", change_hsv, METH_VARARGS,
     "change_hsv(pixels, changes): changes hue, saturation and value of planes [n, 3, ...] by float32 [n, 3]"},
    {"blend_colors", blend_colors, METH_VARARGS,
     "blend_colors(pixels, gain, offset, grey) -> the new mean grey. Values of planes [3, ...] become gain * value + "
     "offset + grey * the grey of the pixel"},
    {"convert_pixels", convert_pixels, METH_VARARGS,
     "convert_pixels(pixels, images, table, out, is_interleaved): writes the values of a table [3, 256] for planes "
     "[images, 3, ...]"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)add_constants},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* shared data is only exchanged atomically */
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "wds_tools.images._native",
    .m_doc = "Renders and transcodes JPEGs without holding the GIL. See wds_tools/images/native.py.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
