"""The published schema of a Terraform provider, read from the language bindings that its authors generated from it.

`cdktf-provider-aws` and `-google` (Python wheels, of December 2025) hold one JavaScript file for each resource, which
says how it is written in HCL: names, blocks and types. The declarations beside it say what is required, and getters
say what the provider computes. What they do not hold, no check sees: enumerations, conflicts, name patterns.
"""

import re
import tarfile
from collections.abc import Iterable, Mapping
from functools import cached_property
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, NamedTuple

Schema = dict[str, Any]
"""`attributes`: name → {type, required, computed}; `blocks`: name → {nesting, most, required, schema}."""

ENTRY = re.compile(
    r"^ +(?P<name>\w+): \{\n +value: (?P<value>.*),\n +isBlock: (?P<block>true|false),\n"
    r' +type: "(?P<nesting>\w+)",\n +storageClassType: "(?P<type>\w+)"',
    re.MULTILINE,
)
FUNCTION = re.compile(r"^function (\w+)ToHclTerraform\(struct\) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
MAIN = re.compile(r"^ +synthesizeHclAttributes\(\) \{\n(.*?)^    \}", re.MULTILINE | re.DOTALL)
GETTER = re.compile(r"return this\.get(String|Number|Boolean|List|StringMap|NumberList)Attribute\('(\w+)'\)")
INTERFACE = re.compile(r"^export interface (\w+)(?: extends [\w.]+)? \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"#(\w+) [\w#]+\}.*?readonly \w+(\??):", re.DOTALL)
PRIMITIVES = {"string": "string", "number": "number", "boolean": "bool"}
COMPUTED = {
    "String": "string",
    "Number": "number",
    "Boolean": "bool",
    "List": ["list", "string"],
    "NumberList": ["list", "number"],
    "StringMap": ["map", "string"],
}
COMPLEX = "dynamic"
"""The type of a computed value of which the bindings tell no more than that it is there."""


class Binding(NamedTuple):
    """The two files of one resource, data source or provider configuration."""

    code: str
    declarations: str

    def schema(self) -> Schema:
        functions = dict(FUNCTION.findall(self.code))
        required = {
            interface[0].lower() + interface[1:]: {name for name, optional in FIELD.findall(body) if not optional}
            for interface, body in INTERFACE.findall(self.declarations)
        }
        found = MAIN.search(self.code)
        assert found is not None, "the binding has no attributes"
        config = next((name for name in required if name.endswith("Config")), "")
        main = _schema(found[1], required.get(config, set()), functions, required)
        own_class = self.code[self.code.rfind("class ", 0, found.start()) :]
        for kind, name in GETTER.findall(own_class):
            if name not in main["attributes"] and name not in main["blocks"]:
                main["attributes"][name] = {"type": COMPUTED[kind], "required": False, "computed": True}
        for name in re.findall(r"List\(this, \"(\w+)\"", own_class):
            if name not in main["attributes"] and name not in main["blocks"]:
                main["attributes"][name] = {"type": COMPLEX, "required": False, "computed": True}
        return main


def _schema(
    body: str, required: set[str], functions: Mapping[str, str], all_required: Mapping[str, set[str]]
) -> Schema:
    schema: Schema = {"attributes": {}, "blocks": {}}
    for entry in ENTRY.finditer(body):
        name, nested = entry["name"], re.search(r"(?<!\.)\b(\w+)ToHclTerraform\b", entry["value"])
        if entry["block"] == "true" and nested and nested[1] in functions:
            schema["blocks"][name] = {
                "nesting": {"struct": "single"}.get(entry["nesting"], entry["nesting"]),
                "most": 0 if "listMapperHcl" in entry["value"] or entry["nesting"] == "struct" else 1,
                "required": name in required,
                "schema": _schema(functions[nested[1]], all_required.get(nested[1], set()), functions, all_required),
            }
        else:
            schema["attributes"][name] = {
                "type": _type(entry["nesting"], entry["type"]),
                "required": name in required,
                "computed": name not in required,
            }
    return schema


def _type(nesting: str, stored: str) -> Any:
    if stored in PRIMITIVES:
        return PRIMITIVES[stored]
    element = next((PRIMITIVES[name] for name in PRIMITIVES if stored.startswith(name)), None)
    if element is None:
        return COMPLEX
    return [nesting if nesting in ("list", "set", "map") else "list", element]


class Bindings:
    """The bindings of one provider. `package`: such as `cdktf-cdktf-provider-aws`."""

    def __init__(self, package: str) -> None:
        self._package = package

    @cached_property
    def _archive(self) -> Path:
        files = distribution(self._package).files or []
        return next(Path(str(file.locate())) for file in files if file.name.endswith(".jsii.tgz"))

    def schema(self, provider: str, resources: Iterable[str], data_sources: Iterable[str]) -> dict[str, Any]:
        """Returns the schemas of the provider's configuration and of these types; a type that it lacks is left out."""
        folders = {("resources", name): name.removeprefix(f"{provider}_") for name in resources}
        folders |= {("data_sources", name): f"data-{name}" for name in data_sources}
        folders[("provider", "")] = "provider"
        wanted = {folder.replace("_", "-") for folder in folders.values()}
        bindings = self._read(wanted)
        result: dict[str, Any] = {"provider": {}, "resources": {}, "data_sources": {}}
        for (kind, name), folder in folders.items():
            binding = bindings.get(folder.replace("_", "-"))
            if binding is not None and kind == "provider":
                result["provider"] = binding.schema()
            elif binding is not None:
                result[kind][name] = binding.schema()
        return result

    def _read(self, folders: set[str]) -> dict[str, Binding]:
        texts: dict[tuple[str, str], str] = {}
        with tarfile.open(self._archive, "r:gz") as archive:
            for member in archive:
                parts = member.name.split("/")
                if parts[:2] == ["package", "lib"] and len(parts) == 4 and parts[2] in folders:
                    file = archive.extractfile(member)
                    assert file is not None
                    texts[parts[2], parts[3]] = file.read().decode()
        return {
            folder: Binding(texts[folder, "index.js"], texts[folder, "index.d.ts"])
            for folder in folders
            if (folder, "index.js") in texts
        }
