"""The programs jpegtran and cjpeg for the tests, as far as they are used there: nothing has to be installed for them.

They call the libjpeg-turbo that Pillow's wheel brings, as the programs of libjpeg-turbo do. `jpeg_programs` in
conftest.py puts them on the PATH. One process runs for each picture, so this imports nothing that takes long.
"""

import ctypes
import sys

TURBO_ABI = 62  # JPEG_LIB_VERSION of the library in Pillow's wheels; it checks this, and the sizes below
DECOMPRESS_BYTES = 632
RGB = 2  # JCS_RGB


class Component(ctypes.Structure):
    """The start of jpeg_component_info, of 96 bytes."""

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
        ("rest", ctypes.c_char * 48),
    )


class Scan(ctypes.Structure):
    """jpeg_scan_info."""

    _fields_ = (
        ("comps_in_scan", ctypes.c_int),
        ("component_index", ctypes.c_int * 4),
        ("band", ctypes.c_int * 4),  # Ss, Se, Ah, Al
    )


class Compress(ctypes.Structure):
    """jpeg_compress_struct, of 520 bytes."""

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
        ("rest", ctypes.c_char * 232),
    )


class Errors:
    """jpeg_error_mgr, filled by the library: an error ends the process with exit code 1, warnings are counted."""

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
    """A JPEG that is being written to memory."""

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
        """Take the options that both programs have: of the coding, not of the picture."""
        if "-scans" in options:
            self.scans = read_scans(value_of("-scans", options))
            self.info.num_scans, self.info.scan_info = len(self.scans), self.scans
        self.info.arith_code = "-arithmetic" in options
        self.info.optimize_coding = "-optimize" in options
        if "-restart" in options:
            self.info.restart_interval = int(value_of("-restart", options).removesuffix("B"))
        if "-progressive" in options:
            self.library.jpeg_simple_progression(self)

    def finish(self) -> bytes:
        self.library.jpeg_finish_compress(self)
        return ctypes.string_at(self.data, self.size.value)


def read_scans(path: str) -> "ctypes.Array[Scan]":
    """Read a scan script, with scans such as "0,1,2: 0-0, 0, 0;"."""
    with open(path) as file:  # noqa: PTH123 - pathlib takes longer to import than the rest takes to run
        lines = file.read().split(";")[:-1]
    scans = (Scan * len(lines))()
    for scan, line in zip(scans, lines, strict=True):
        components, _, band = line.partition(":")
        indexes = [int(word) for word in components.split(",")]
        scan.comps_in_scan = len(indexes)
        scan.component_index[: len(indexes)] = indexes
        scan.band[:] = [int(word) for word in band.replace("-", ",").split(",") if word.strip()] or [0, 63, 0, 0]
    return scans


def value_of(option: str, options: list[str]) -> str:
    return options[options.index(option) + 1]


def jpegtran(library: ctypes.CDLL, options: list[str]) -> tuple[bytes, int]:
    """Write the coefficients of the JPEG at stdin anew; return the new JPEG, without comments, and the warnings."""
    writer, errors = Writer(library), Errors(library)
    reader = ctypes.create_string_buffer(DECOMPRESS_BYTES)
    ctypes.c_void_p.from_buffer(reader).value = errors.address
    library.jpeg_CreateDecompress(reader, TURBO_ABI, ctypes.c_size_t(DECOMPRESS_BYTES))
    library.jpeg_stdio_src(reader, ctypes.c_void_p.in_dll(ctypes.CDLL(None), "stdin"))
    library.jpeg_read_header(reader, 1)
    library.jpeg_read_coefficients.restype = ctypes.c_void_p
    coefficients = ctypes.c_void_p(library.jpeg_read_coefficients(reader))
    library.jpeg_copy_critical_parameters(reader, writer)
    if writer.info.num_components == 1:  # as the real jpegtran
        writer.info.comp_info[0].h_samp_factor = writer.info.comp_info[0].v_samp_factor = 1
    writer.set_coding(options)
    library.jpeg_write_coefficients(writer, coefficients)
    made = writer.finish()
    library.jpeg_finish_decompress(reader)
    return made, errors.warnings + writer.errors.warnings


def cjpeg(library: ctypes.CDLL, options: list[str]) -> tuple[bytes, int]:
    """Encode the PPM at stdin, of 8 bits; return the JPEG and the number of warnings."""
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
    made, warnings = PROGRAMS[name](ctypes.CDLL(library), options)
    sys.stdout.buffer.write(made)
    sys.exit(2 if warnings else 0)


if __name__ == "__main__":
    main()
