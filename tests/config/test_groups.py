import pytest

from sglk.config.compose import compose
from sglk.config.groups import parse_groups
from sglk.config.schema import GroupConfig
from sglk.errors import ConfigError

SHELL = "cuda:0,kunlun:0;cuda:1"
LISTED = [
    {"name": "group0", "devices": ["cuda:0", "kunlun:0"]},
    {"name": "group1", "devices": ["cuda:1"], "weight": 1},
]


def test_text_and_list_mean_the_same() -> None:
    assert parse_groups(SHELL, "cpu") == parse_groups(LISTED, "cpu")
    assert parse_groups(["cuda:0,kunlun:0", "cuda:1"], "cpu") == parse_groups(SHELL, "cpu")


def test_null_is_one_group_of_the_chip() -> None:
    assert parse_groups(None, "kunlun") == [GroupConfig("group0", ["kunlun:0"], 1.0)]
    assert parse_groups(None, "cuda", tp_size=2) == [GroupConfig("group0", ["cuda:0", "cuda:1"], 1.0)]


def test_the_list_form_works_on_the_command_line() -> None:
    word = "groups=[{name: old, devices: [cuda:0], weight: 80}, {name: new, devices: [kunlun:0], weight: 20}]"
    assert compose("serve", [word]).config.groups == [
        GroupConfig("old", ["cuda:0"], 80.0),
        GroupConfig("new", ["kunlun:0"], 20.0),
    ]


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("", "has no devices"),
        ("cuda:0;", "'group1' has no devices"),
        ("cuda", "not of the form backend:index"),
        ("cuda:x", "not of the form backend:index"),
        ("cuda:0,cuda:0", "is in group 'group0' twice"),
        (3, "neither text nor a list"),
        (True, "groups=true is neither text nor a list"),
        ({"devices": "cuda:0"}, "groups={devices:'cuda:0'} is neither text nor a list"),
        ([], "groups=[] names no device"),
        ([3], "groups[0]=3 is not a group"),
        ([None], "groups[0]=null is not a group"),
        ([[]], "groups[0]=[] is not a group"),
        ([""], "'group0' has no devices"),
        ([{}], "'group0' has no devices"),
        ([{"devices": []}], "'group0' has no devices"),
        ([{"devices": 5}], "groups[0].devices=5 is not text or a list"),
        ([{"devices": {"cuda": 0}}], "groups[0].devices={cuda:0} is not text or a list"),
        ([{"devices": [None]}], "groups[0].devices has null"),
        ([{"devices": "cuda:0"}, {"devices": [[]]}], "groups[1].devices has []"),
        ([{"devices": "cuda:0", "name": []}], "groups[0].name=[] is not text"),
        ([{"devices": "cuda:0", "name": ""}], "device group '': a name is of letters"),
        ([{"devices": "cuda:0", "chip": ""}], "chip of device group 'group0' is empty"),
        ([{"name": "a", "device": ["cuda:0"]}], "did you mean 'devices'?"),
        ([{"name": "a"}], "'a' has no devices"),
        ([{"name": "a", "devices": ["cuda:0"], "weight": "much"}], "is not a number"),
        ([{"name": "a", "devices": ["cuda:0"], "weight": -1}], "is not a number from 0 up"),
        ([{"name": "a", "devices": ["cuda:0"], "weight": float("nan")}], "is not a number from 0 up"),
        ([{"name": "a", "devices": ["cuda:0"], "weight": 0}], "has a weight above 0"),
        ([{"name": "a", "devices": ["cuda:0"], "standby": True}], "has a weight above 0"),
        ([{"name": "a", "devices": ["cuda:0"], "standby": "yes"}], "groups[0].standby='yes' is not true or false"),
        ([{"name": "a", "devices": ["cuda:0"], "runtime": 3}], "is not a mapping of runtime parameters"),
        ([{"name": "a", "devices": ["cuda:0"], "tp_size": True}], "groups[0].tp_size=true is not an integer"),
        ([{"name": "a b", "devices": ["cuda:0"]}], "a name is of letters"),
        ([{"name": "a", "devices": ["cuda:0"]}, {"name": "a", "devices": ["cuda:1"]}], "two device groups"),
    ],
)
def test_a_wrong_group_is_refused(value: object, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_groups(value, "cpu")
    assert part in str(caught.value)
