"""Languages as LibreTranslate names them."""

from __future__ import annotations

from dataclasses import dataclass

from hmc.artifact.errors import InvalidRequestError
from hmc.serving.levels.languages import ANY, look_up

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


def language_name(tag: str) -> str:
    """The English name of a language, or its tag if the name is not known."""
    return NAMES.get(tag.partition("-")[0].lower(), tag)


@dataclass(frozen=True)
class Pair:
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
