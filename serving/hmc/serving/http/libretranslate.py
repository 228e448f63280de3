"""LibreTranslate's API, so that its clients work unchanged. Each call becomes an RPC."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qs, unquote_plus

import grpc
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hmc.artifact.errors import InvalidRequestError
from hmc.serving.http.bodies import FORM, JSON, Body, check_unpacked
from hmc.serving.http.call import HttpError, PlainCall, invalid
from hmc.serving.http.exchange import unless
from hmc.serving.http.methods import Methods
from hmc.serving.text.languages import ANY, look_up
from hmc.v1 import translation_pb2 as pb

TRANSLATION = pb.DESCRIPTOR.services_by_name["TranslationService"]
JSON_KEY = re.compile(rb'(?<!\\)"api_key"\s*:\s*("(?:[^"\\]|\\.){0,4096}")')
FORM_KEY = re.compile(rb"(?:^|&)api_key=([^&]*)")
KEYED_BYTES = 2**20
"""Largest body of a call whose key is in the body: it is read before the key can be checked."""
TAG = re.compile(r"<[/!?a-zA-Z]")
MAX_ALTERNATIVES = 15
N_BEST = "options.n_best"
"""The field that is at fault if a text is divided into sentences: these have no alternatives together."""
NOT_DETECTED = 0.0
"""Confidence of a language that is declared, not detected."""
Values = dict[str, Any]
NAMES = {
    "ar": "Arabic", "az": "Azerbaijani", "bg": "Bulgarian", "bn": "Bengali", "ca": "Catalan", "cs": "Czech",
    "da": "Danish", "de": "German", "el": "Greek", "en": "English", "eo": "Esperanto", "es": "Spanish",
    "et": "Estonian", "eu": "Basque", "fa": "Persian", "fi": "Finnish", "fr": "French", "ga": "Irish",
    "gl": "Galician", "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian", "hy": "Armenian",
    "id": "Indonesian", "is": "Icelandic", "it": "Italian", "ja": "Japanese", "ka": "Georgian", "ko": "Korean",
    "lt": "Lithuanian", "lv": "Latvian", "mk": "Macedonian", "ms": "Malay", "mt": "Maltese", "mul": "Several languages",
    "nb": "Norwegian Bokmål",
    "nl": "Dutch", "no": "Norwegian", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian",
    "sk": "Slovak", "sl": "Slovenian", "sq": "Albanian", "sr": "Serbian", "sv": "Swedish", "sw": "Swahili",
    "ta": "Tamil", "th": "Thai", "tl": "Tagalog", "tr": "Turkish", "uk": "Ukrainian", "ur": "Urdu",
    "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
"""English names by the first part of a BCP 47 tag."""


def libretranslate_routes(methods: Methods, needs_token: bool) -> list[Route]:
    """The routes of LibreTranslate. needs_token: whether calls need an API key."""
    door = _LibreTranslate(methods, needs_token)
    return [
        Route("/translate", _shaped(door.translate), methods=["POST"]),
        Route("/detect", _shaped(door.detect), methods=["POST"]),
        Route("/languages", _shaped(door.languages)),
        Route("/frontend/settings", _shaped(door.settings)),
    ]


def _shaped(call: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
    """Answers in JSON; errors have LibreTranslate's shape and statuses."""

    async def endpoint(request: Request) -> Response:
        try:
            return JSONResponse(await call(request))
        except HttpError as error:
            status = 403 if error.code is grpc.StatusCode.UNAUTHENTICATED else error.http_status
            headers = {name: value for name, value in error.headers.items() if name != "WWW-Authenticate"}
            return JSONResponse({"error": error.message}, status, headers)

    return endpoint


class _Sent:
    """What a call sends. Its body is read when its token has been checked, unless the token can only be in the body."""

    def __init__(self, request: Request, needs_token: bool) -> None:
        self.body = Body(request)
        self._request = request
        self._needs_token = needs_token
        self._kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        self._read: bytes | None = None

    async def call(self) -> PlainCall:
        """An RPC of this call."""
        request = self._request
        if not self._needs_token or "authorization" in request.headers:
            return PlainCall.from_request(request)
        key = request.query_params.get("api_key") or _key_in(await self._bytes(), self._kind == JSON)
        return PlainCall.from_request(request, {"authorization": f"Bearer {key}"} if key else None)

    async def values(self) -> Values:
        """The parameters, from a form, JSON or the query, as LibreTranslate takes them."""
        body = await self._bytes()
        if self._kind == JSON:
            return await asyncio.to_thread(_from_json, body)
        if body and self._kind not in {FORM, ""}:
            raise invalid(f"content type {self._kind}: send JSON or {FORM}", 415)
        return {**self._request.query_params, **await asyncio.to_thread(_from_form, body)}

    async def _bytes(self) -> bytes:
        if self._read is None:
            request = self._request
            check_unpacked(request)
            known = not self._needs_token or "authorization" in request.headers or request.query_params.get("api_key")
            self._read = await self.body.read() if known else await self._short()
        return self._read

    async def _short(self) -> bytes:
        try:
            return await self.body.read(KEYED_BYTES)
        except HttpError as error:
            if error.status == 413:
                error.message += ", or send the key in the header `Authorization: Bearer KEY`"
            raise


@dataclass(frozen=True)
class LanguagePair:
    """Two languages that a model translates between."""

    source: str
    """`mul` if the model reads several."""
    target: str
    model: str
    """The model's name."""

    def translates(self, source: str, target: str) -> bool:
        """Whether the pair fits. source: a tag, or "auto". Tags fit as for requests: `de-AT` finds `de`."""
        try:
            reads = source.lower() == "auto" or self.source == ANY or look_up(source, [self.source], "source") == 0
            return reads and look_up(target, [self.target], "target") == 0
        except InvalidRequestError:  # no language tag
            return False


@dataclass(frozen=True)
class _Wanted:
    """The parameters of a translation."""

    texts: list[str]
    is_list: bool
    is_html: bool
    alternatives: int
    source: str
    pair: LanguagePair

    @classmethod
    def parse(cls, values: Values, pairs: list[LanguagePair]) -> _Wanted:
        """pairs: the language pairs that the server translates. Raises HttpError."""
        texts, is_list = _texts(values)
        source = _word(values, "source")
        target = _word(values, "target")
        is_html = _is_html(values, texts)
        return cls(texts, is_list, is_html, _alternatives(values), source, _pair(pairs, source, target))

    def request(self, alternatives: int) -> pb.TranslateRequest:
        """Raises HttpError. Long markup takes time, so call this in a thread."""
        return pb.TranslateRequest(
            texts=_unescaped(self.texts) if self.is_html else self.texts,
            level=pb.LevelSelector(
                source_language=self.pair.source, target_language=self.pair.target, model=self.pair.model
            ),
            options=pb.DecodingOptions(beam_size=max(4, self.alternatives + 1), n_best=alternatives + 1),
        )

    def answer(self, answer: pb.TranslateResponse) -> Values:
        written = html.escape if self.is_html else str
        translated = [written(one.text) for one in answer.translations]
        others = [[written(other.text) for other in one.alternatives] for one in answer.translations]
        said: Values = {"translatedText": translated if self.is_list else translated[0]}
        if self.alternatives:
            said["alternatives"] = others if self.is_list else others[0]
        incomplete = [one.hit_max_length or one.much_shorter or one.source_truncated for one in answer.translations]
        if any(incomplete):  # no field of LibreTranslate's own, so its clients pass over it
            said["mayBeIncomplete"] = incomplete if self.is_list else incomplete[0]
        unknown = [one.mostly_unknown for one in answer.translations]
        if any(unknown):
            said["mostlyUnknown"] = unknown if self.is_list else unknown[0]
        if self.source == "auto":
            found = {"language": self.pair.source, "confidence": NOT_DETECTED}
            said["detectedLanguage"] = [found] * len(self.texts) if self.is_list else found
        return said


class _LibreTranslate:
    def __init__(self, methods: Methods, needs_token: bool) -> None:
        self._methods = methods
        self._needs_token = needs_token

    async def translate(self, request: Request) -> Values:
        sent = _Sent(request, self._needs_token)
        return await unless(sent.body.disconnected(), self._translate(sent))

    async def _translate(self, sent: _Sent) -> Values:
        pairs = await self._pairs(await sent.call())
        wanted: _Wanted | None = None

        async def first() -> pb.TranslateRequest:
            nonlocal wanted
            wanted = _Wanted.parse(await sent.values(), pairs)
            return await asyncio.to_thread(wanted.request, wanted.alternatives)

        async def without_alternatives() -> pb.TranslateRequest:
            assert wanted is not None
            return await asyncio.to_thread(wanted.request, 0)

        method = TRANSLATION.methods_by_name["Translate"]
        try:
            answer = await self._methods.unary(method, first, await sent.call())
        except HttpError as error:
            if N_BEST not in error.fields:
                raise
            again = await sent.call()
            again.charged = True
            answer = await self._methods.unary(method, without_alternatives, again)
        assert wanted is not None
        return wanted.answer(cast("pb.TranslateResponse", answer))

    async def detect(self, request: Request) -> list[Values]:
        sent = _Sent(request, self._needs_token)
        pairs = await self._pairs(await sent.call())
        _texts(await sent.values())
        return [{"language": code, "confidence": NOT_DETECTED} for code in dict.fromkeys(p.source for p in pairs)]

    async def languages(self, request: Request) -> list[Values]:
        sent = _Sent(request, self._needs_token)
        pairs = await self._pairs(await sent.call())
        sources = list(dict.fromkeys(p.source for p in pairs))
        codes = dict.fromkeys([*sources, *(p.target for p in pairs)])
        return [{"code": code, "name": language_name(code), "targets": _targets(pairs, code)} for code in codes]

    async def settings(self, request: Request) -> Values:
        pairs = [] if self._needs_token else await self._pairs(PlainCall.from_request(request))
        first = pairs[0] if pairs else None
        return {
            "apiKeys": self._needs_token,
            "keyRequired": self._needs_token,
            "charLimit": -1,
            "frontendTimeout": 500,
            "suggestions": False,
            "filesTranslation": False,
            "supportedFilesFormat": [],
            "language": {
                "source": _language(first.source if first else None),
                "target": _language(first.target if first else None),
            },
        }

    async def _pairs(self, call: PlainCall) -> list[LanguagePair]:
        """The language pairs of the server's models."""

        async def all_models() -> pb.ListModelsRequest:
            return pb.ListModelsRequest()

        answer = await self._methods.unary(TRANSLATION.methods_by_name["ListModels"], all_models, call)
        models = cast("pb.ListModelsResponse", answer).models
        return [LanguagePair(m.source_language, target, m.name) for m in models for target in m.target_languages]


def language_name(tag: str) -> str:
    """The English name of a language, or its tag if the name is not known."""
    return NAMES.get(tag.partition("-")[0].lower(), tag)


def _targets(pairs: list[LanguagePair], source: str) -> list[str]:
    return list(dict.fromkeys(p.target for p in pairs if p.source == source))


def _language(code: str | None) -> Values:
    return {"code": code or "", "name": language_name(code) if code else ""}


def _key_in(body: bytes, is_json: bool) -> str:
    """The API key in a body; empty if there is none. Nothing else of the body is read."""
    if not is_json:
        keys = FORM_KEY.findall(body)
        return unquote_plus(keys[-1].decode(errors="replace")) if keys else ""
    keys = JSON_KEY.findall(body)
    try:
        return str(json.loads(keys[-1])).encode(errors="replace").decode() if keys else ""  # no halves of surrogates
    except ValueError:  # the whole body is no JSON either
        return ""


def _from_form(body: bytes) -> Values:
    try:
        form = parse_qs(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=2000)
    except ValueError as error:
        raise invalid("Invalid request: the form is not UTF-8, or has too many fields") from error
    return {name: given if name == "q" and len(given) > 1 else given[-1] for name, given in form.items()}


def _from_json(body: bytes) -> Values:
    try:
        values = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise invalid("Invalid JSON format") from error
    if not isinstance(values, dict):
        raise invalid("Invalid JSON format: send an object")
    return values


def _texts(values: Values) -> tuple[list[str], bool]:
    texts = values.get("q")
    if texts in (None, "", []):
        raise invalid("Invalid request: missing q parameter")
    listed = texts if isinstance(texts, list) else [texts]
    for text in listed:
        if not isinstance(text, str):
            raise invalid("Invalid request: q must be a text, or a list of texts")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise invalid("Invalid request: q has half of a surrogate pair, which is not Unicode text") from error
    return listed, isinstance(texts, list)


def _word(values: Values, name: str) -> str:
    value = values.get(name)
    if not value:
        raise invalid(f"Invalid request: missing {name} parameter")
    if not isinstance(value, str):
        raise invalid(f"Invalid request: {name} must be a language code")
    return value


def _is_html(values: Values, texts: list[str]) -> bool:
    kind = values.get("format") or "text"
    if kind not in ("text", "html"):
        raise invalid(f"{kind!r} is not a supported format: send text or html")
    if kind == "html" and any(TAG.search(text) for text in texts):
        raise invalid("this server does not translate HTML with tags: send the text between them, with format text")
    return bool(kind == "html")


def _unescaped(texts: list[str]) -> list[str]:
    try:
        return [html.unescape(text) for text in texts]
    except ValueError as error:  # Python reads no number of more than 4300 digits
        raise invalid("Invalid request: q has a character reference of too many digits") from error


def _alternatives(values: Values) -> int:
    given = values.get("alternatives") or 0
    try:
        number = int(given) if isinstance(given, int | str) else -1
    except ValueError:
        number = -1
    if not 0 <= number <= MAX_ALTERNATIVES:
        raise invalid(f"Invalid request: alternatives must be a whole number from 0 to {MAX_ALTERNATIVES}")
    return number


def _pair(pairs: list[LanguagePair], source: str, target: str) -> LanguagePair:
    fits = [p for p in pairs if p.translates(source, target)]
    if fits:
        return fits[0]
    known = ", ".join(f"{p.source} to {p.target}" for p in pairs)
    name = json.dumps(f"{source} to {target}")[1:-1]
    raise invalid(f"{name} is not supported: this server translates {known}")
