"""The programs jpegtran and cjpeg, with the options that the tests use, so that they need not be installed.

They call the libjpeg-turbo of Pillow's wheel in the same way as the original programs. `jpeg_programs` in conftest.py
puts them on the PATH. One process runs per image, without site-packages, so this module imports only modules of the
standard library that load fast. `turbo` uses its classes too.
"""

import ctypes
import sys

TURBO_ABI = 62  # JPEG_LIB_VERSION of the library in Pillow's wheels; it checks this number and the sizes of the structs
RGB = 2  # JCS_RGB

Script = list[tuple[tuple[int, ...], int, int, int, int]]  # the scans of a file: components, Ss, Se, Ah, Al


class Component(ctypes.Structure):
    """jpeg_component_info."""

    _fields_ = (
        ("component_id", ctypes.c_int),
        ("component_index", ctypes.c_int),
        ("h_samp_factor", ctypes.c_int),
        ("v_samp_factor", ctypes.c_int),
        ("quant_tbl_no", ctypes.c_int),
        ("dc_tbl_no", ctypes.c_int),
        ("ac_tbl_no", ctypes.c_int),
        ("width_in_blocks", ctypes.c_uint),
        ("height_in_blocks", ctypes.c_uint),
        ("DCT_scaled_size", ctypes.c_int),
        ("downsampled_width", ctypes.c_uint),
        ("downsampled_height", ctypes.c_uint),
        ("not_used", ctypes.c_char * 48),
    )


class Scan(ctypes.Structure):
    """jpeg_scan_info."""

    _fields_ = (
        ("comps_in_scan", ctypes.c_int),
        ("component_index", ctypes.c_int * 4),
        ("band", ctypes.c_int * 4),  # Ss, Se, Ah, Al
    )


class Compress(ctypes.Structure):
    """jpeg_compress_struct."""

    _fields_ = (
        ("err", ctypes.c_void_p),
        ("common", ctypes.c_char * 40),
        ("image_width", ctypes.c_uint),
        ("image_height", ctypes.c_uint),
        ("input_components", ctypes.c_int),
        ("in_color_space", ctypes.c_int),
        ("input_gamma", ctypes.c_double),
        ("data_precision", ctypes.c_int),
        ("num_components", ctypes.c_int),
        ("jpeg_color_space", ctypes.c_int),
        ("comp_info", ctypes.POINTER(Component)),
        ("tables", ctypes.c_char * 144),
        ("num_scans", ctypes.c_int),
        ("scan_info", ctypes.POINTER(Scan)),
        ("raw_data_in", ctypes.c_int),
        ("arith_code", ctypes.c_int),
        ("optimize_coding", ctypes.c_int),
        ("ccir601_sampling", ctypes.c_int),
        ("smoothing_factor", ctypes.c_int),
        ("dct_method", ctypes.c_int),
        ("restart_interval", ctypes.c_uint),
        ("restart_in_rows", ctypes.c_int),
        ("not_used", ctypes.c_char * 232),
    )


class Decompress(ctypes.Structure):
    """jpeg_decompress_struct."""

    _fields_ = (
        ("err", ctypes.c_void_p),
        ("common", ctypes.c_char * 40),
        ("image_width", ctypes.c_uint),
        ("image_height", ctypes.c_uint),
        ("num_components", ctypes.c_int),
        ("jpeg_color_space", ctypes.c_int),
        ("out_color_space", ctypes.c_int),
        ("scale_num", ctypes.c_uint),
        ("scale_denom", ctypes.c_uint),
        ("output_gamma", ctypes.c_double),
        ("buffered_image", ctypes.c_int),
        ("raw_data_out", ctypes.c_int),
        ("dct_method", ctypes.c_int),
        ("do_fancy_upsampling", ctypes.c_int),
        ("do_block_smoothing", ctypes.c_int),
        ("colors", ctypes.c_char * 24),
        ("output_width", ctypes.c_uint),
        ("output_height", ctypes.c_uint),
        ("output", ctypes.c_char * 24),
        ("output_scanline", ctypes.c_uint),
        ("progress", ctypes.c_char * 132),
        ("comp_info", ctypes.POINTER(Component)),
        ("coding", ctypes.c_char * 96),
        ("max_h_samp_factor", ctypes.c_int),
        ("max_v_samp_factor", ctypes.c_int),
        ("min_DCT_scaled_size", ctypes.c_int),
        ("not_used", ctypes.c_char * 212),
    )


assert [ctypes.sizeof(struct) for struct in (Component, Compress, Decompress)] == [96, 520, 632]
assert Decompress.comp_info.offset == 304


class Errors:
    """jpeg_error_mgr, initialized by the library: an error ends the process with exit code 1, warnings are counted."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._struct = ctypes.create_string_buffer(168)
        library.jpeg_std_error(self._struct)

    @property
    def address(self) -> int:
        return ctypes.addressof(self._struct)

    @property
    def warnings(self) -> int:
        return ctypes.c_long.from_buffer(self._struct, 128).value


class Writer:
    """The state of writing a JPEG to memory."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.errors = Errors(library)
        self.info = Compress(err=self.errors.address)
        library.jpeg_CreateCompress(self, TURBO_ABI, ctypes.c_size_t(ctypes.sizeof(Compress)))
        self.data, self.size = ctypes.c_void_p(), ctypes.c_ulong()
        library.jpeg_mem_dest(self, ctypes.byref(self.data), ctypes.byref(self.size))

    @property
    def _as_parameter_(self) -> object:
        return ctypes.byref(self.info)

    def set_coding(self, options: list[str]) -> None:
        """Apply the options of the encoding that both programs have."""
        if "-scans" in options:
            self.set_script(read_script(value_of("-scans", options)))
        self.info.arith_code = "-arithmetic" in options
        self.info.optimize_coding = "-optimize" in options
        if "-restart" in options:
            self.info.restart_interval = int(value_of("-restart", options).removesuffix("B"))
        if "-progressive" in options:
            self.library.jpeg_simple_progression(self)

    def set_script(self, script: Script) -> None:
        """Set the scans to write."""
        self._scans = (Scan * len(script))()  # the library does not copy it
        for scan, (components, *band) in zip(self._scans, script, strict=True):
            scan.comps_in_scan = len(components)
            scan.component_index[: len(components)] = components
            scan.band[:] = band
        self.info.num_scans, self.info.scan_info = len(script), self._scans

    def finish(self) -> bytes:
        """Return the file and free the memory."""
        self.library.jpeg_finish_compress(self)
        data = ctypes.string_at(self.data, self.size.value)
        self.library.jpeg_destroy_compress(self)
        ctypes.CDLL(None).free(self.data)  # the one that belongs to malloc, also with AddressSanitizer
        return data


class Reader:
    """The state of reading a JPEG."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.errors = Errors(library)
        self.info = Decompress(err=self.errors.address)
        library.jpeg_CreateDecompress(self, TURBO_ABI, ctypes.c_size_t(ctypes.sizeof(Decompress)))

    @property
    def _as_parameter_(self) -> object:
        return ctypes.byref(self.info)


def read_script(path: str) -> Script:
    """Read a file of scans such as "0,1,2: 0-0, 0, 0;"."""
    with open(path) as file:  # noqa: PTH123 - importing pathlib takes longer than the rest of the program
        lines = file.read().split(";")[:-1]
    script: Script = []
    for line in lines:
        components, _, band = line.partition(":")
        numbers = [int(word) for word in band.replace("-", ",").split(",") if word.strip()] or [0, 63, 0, 0]
        script.append((tuple(map(int, components.split(","))), *numbers))  # type: ignore[arg-type]
    return script


def value_of(option: str, options: list[str]) -> str:
    return options[options.index(option) + 1]


def jpegtran(library: ctypes.CDLL, options: list[str]) -> tuple[bytes, int]:
    """Transcode the JPEG from stdin without changing its coefficients; return it, and the number of warnings."""
    writer, reader = Writer(library), Reader(library)
    library.jpeg_stdio_src(reader, ctypes.c_void_p.in_dll(ctypes.CDLL(None), "stdin"))
    library.jpeg_read_header(reader, 1)
    library.jpeg_read_coefficients.restype = ctypes.c_void_p
    coefficients = ctypes.c_void_p(library.jpeg_read_coefficients(reader))
    library.jpeg_copy_critical_parameters(reader, writer)
    if writer.info.num_components == 1:  # as the original jpegtran
        writer.info.comp_info[0].h_samp_factor = writer.info.comp_info[0].v_samp_factor = 1
    writer.set_coding(options)
    library.jpeg_write_coefficients(writer, coefficients)
    data = writer.finish()
    library.jpeg_finish_decompress(reader)
    return data, reader.errors.warnings + writer.errors.warnings


def cjpeg(library: ctypes.CDLL, options: list[str]) -> tuple[bytes, int]:
    """Encode the PPM from stdin, with 8 bits per sample; return the JPEG, and the number of warnings."""
    data = sys.stdin.buffer.read()
    _, width, height, _ = data.split(maxsplit=4)[:4]
    writer = Writer(library)
    info = writer.info
    info.image_width, info.image_height = int(width), int(height)
    info.input_components, info.in_color_space = 3, RGB
    library.jpeg_set_defaults(writer)
    if "-quality" in options:
        library.jpeg_set_quality(writer, int(value_of("-quality", options)), 0)
    if "-sample" in options:
        factors = value_of("-sample", options).split(",") + ["1x1"] * 3
        for component, factor in zip(info.comp_info[:3], factors, strict=False):
            component.h_samp_factor, component.v_samp_factor = map(int, factor.split("x"))
    writer.set_coding(options)
    library.jpeg_start_compress(writer, 1)
    row_bytes = 3 * info.image_width
    first = len(data) - row_bytes * info.image_height
    for row in range(info.image_height):
        pixels = ctypes.c_char_p(data[first + row * row_bytes : first + (row + 1) * row_bytes])
        library.jpeg_write_scanlines(writer, ctypes.byref(pixels), 1)
    return writer.finish(), writer.errors.warnings


PROGRAMS = {"jpegtran": jpegtran, "cjpeg": cjpeg}


def main() -> None:
    name, library, *options = sys.argv[1:]
    data, warnings = PROGRAMS[name](ctypes.CDLL(library), options)
    sys.stdout.buffer.write(data)
    sys.exit(2 if warnings else 0)


if __name__ == "__main__":
    main()
