"""OwnEngine: an engine process of a caller's own, as the front has one: configuration, process, sockets, and nothing left behind."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pagoda_contracts.launch import DaemonConfig
from pagoda_contracts.names import DAEMON_CONFIG_KEY

from pagoda_daemon.core.errors import NotStarted
from pagoda_daemon.engine.client import EngineClient
from pagoda_daemon.engine.start import start_engine, wires
from pagoda_daemon.health.replica import Replica
from pagoda_daemon.process import stand_alone
from pagoda_daemon.text.tokens import ModelText

_PLACES: Final = ("revision", "download_dir", "chat_template")


def config_of(model: str | Path, given: Mapping[str, Any]) -> DaemonConfig:
    """`given`: fields of the `engine` section of a DaemonConfig, and of _PLACES. A model that is no directory is fetched first.
    ConfigRejected names what cannot be."""
    places = {name: given.get(name) for name in _PLACES}
    store = None if places["download_dir"] is None else Path(places["download_dir"])
    folder = stand_alone.model_folder(str(model), places["revision"], store)
    section: dict[str, Any] = {"path": str(folder), "servedNames": [stand_alone.name_of(str(model))]}
    if (template := places["chat_template"]) is not None:
        section["chatTemplate"] = str(template)
    return stand_alone.checked({"model": section, "engine": {name: value for name, value in given.items() if name not in _PLACES}})


class OwnEngine:
    """Made without effect. `connect` starts the process, in the thread that it is to end with; `tidy` removes all of it."""

    def __init__(self, config: DaemonConfig) -> None:
        self._config = config
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def connect(self, replica: Replica) -> EngineClient:
        """In the running loop of a thread that lives as long as the engine: the kernel ends the engine with that thread."""
        self._folder = folder = Path(tempfile.mkdtemp(prefix="pagoda-"))
        listen = self._config.listen.model_copy(update={"run_dir": str(folder)})
        config, path = self._config.model_copy(update={"listen": listen}), folder / DAEMON_CONFIG_KEY
        addresses = wires(folder)
        try:
            path.write_text(config.model_dump_json(by_alias=True, exclude_none=True, exclude_unset=True))
            self._process = start_engine(path, addresses)
        except OSError as error:
            raise NotStarted(f"{path}: {error.strerror}") from error
        return EngineClient(self._process, addresses, replica)

    def text(self) -> ModelText:
        """Of the model's directory."""
        model, engine = self._config.model, self._config.engine
        template = None if model.chat_template is None else Path(model.chat_template)
        return ModelText(Path(model.path), engine.tool_parser, template, engine.reasoning_parser)

    def tidy(self) -> None:
        """No process, no socket and no file is left. Idempotent."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
