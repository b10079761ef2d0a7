"""The key paths by which an error names a value that the user wrote."""

import pytest

from fedloom.common.errors import FedLoomError
from fedloom.common.key_path import CONFIG, InvalidKeyError, KeyPath


@pytest.mark.parametrize(
    ("path", "text", "keys"),
    [
        (CONFIG, "config key", ()),
        (CONFIG / "methods" / "a", "config key methods.a", ("methods", "a")),
        (CONFIG / "w" / 0 / "plugin", "config key w[0].plugin", ("w", 0, "plugin")),
        (KeyPath("a.toml"), "a.toml", ()),
        (KeyPath("a.toml") / "options" / "lr", "a.toml: options.lr", ()),
        (KeyPath(CONFIG / "tune", ("m", "lr")), "config key tune: m.lr", ("tune",)),
    ],
)
def test_a_path_begins_an_error_and_knows_its_keys_in_the_config(path, text, keys):
    error = path.error("must be x")
    assert str(error) == f"{text}: must be x"
    assert path.in_config() == keys
    assert isinstance(error, FedLoomError)
    assert error.path == path


def test_a_longer_path_leaves_the_shorter_one_as_it_was():
    shorter = CONFIG / "a"
    assert str(shorter / "b") == "config key a.b"
    assert str(shorter) == "config key a"


def test_an_unknown_name_is_the_item_that_is_meant():
    (CONFIG / "select").check_known("known", {"known"}, "no label")
    with pytest.raises(InvalidKeyError) as caught:
        (CONFIG / "select").check_known("knowing", {"known"}, "no label")
    assert str(caught.value) == "config key select: no label 'knowing'; did you mean 'known'?"
    assert caught.value.item == "knowing"
