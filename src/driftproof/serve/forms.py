"""Parse multipart forms in memory."""

from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from driftproof.serve.errors import RequestError

__all__ = ["FormFile", "parse_form"]


@dataclass
class FormFile:
    """A part of a form.

    Attributes:
        name: Name of the file; None for a part that is no file.
        content: Its bytes.
    """

    name: str | None = None
    content: bytearray = field(default_factory=bytearray)


def parse_form(content_type: str, body: bytes, max_files: int) -> list[FormFile]:
    r"""Return the files of a form; raise `RequestError` for one that is damaged or has more of them.

    Starlette's own parser keeps files on disk and leaves those of damaged forms open.

    Examples:
        >>> body = b'--x\r\nContent-Disposition: form-data; name="f"; filename="a.png"\r\n\r\nabc\r\n--x--\r\n'
        >>> parse_form("multipart/form-data; boundary=x", body, max_files=1)
        [FormFile(name='a.png', content=bytearray(b'abc'))]
    """
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    collector = _Collector(max_files)
    try:
        if not boundary:
            raise FormParserError("no boundary")
        parser = MultipartParser(boundary, collector.callbacks)  # type: ignore[arg-type]  # a typed dictionary
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise RequestError("malformed", "Expected a form with files, but it cannot be read.") from error
    if not collector.is_complete:
        raise RequestError("malformed", "Expected a whole form, but its end is missing.")
    return collector.files


class _Collector:
    """Collects the files that a parser finds."""

    def __init__(self, max_files: int) -> None:
        self.files: list[FormFile] = []
        self.is_complete = False
        self._max_files = max_files
        self._part = FormFile()
        self._name, self._value = b"", b""
        self.callbacks = {
            "on_part_begin": self._begin,
            "on_header_field": self._add_name,
            "on_header_value": self._add_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._add_data,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        self._part = FormFile()

    def _add_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._name.lower() == b"content-disposition":
            name = parse_options_header(self._value)[1].get(b"filename")
            self._part.name = None if name is None else name.decode(errors="replace")
        self._name = self._value = b""

    def _end_headers(self) -> None:
        if self._part.name is None:
            return
        if len(self.files) == self._max_files:
            raise RequestError(
                "too_large", f"Expected at most {self._max_files} images in a request, but got more. Send fewer."
            )
        self.files.append(self._part)

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._part.name is not None:
            self._part.content += data[start:end]

    def _end(self) -> None:
        self.is_complete = True
