"""Results that took minutes are shown, also where they cannot be saved."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import typer

from batchgen.cli.output import Output
from batchgen.config.masking import masked
from batchgen.errors import BatchgenError


@dataclass(slots=True)
class LateFailures:
    """What went wrong after the results were there: shown after them, with an exit code."""

    errors: list[BatchgenError] = field(default_factory=list)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """A BatchgenError within this block is kept for later."""
        try:
            yield
        except BatchgenError as exc:
            self.errors.append(exc)

    def facts(self) -> dict[str, Any]:
        """What they change in the JSON answer: nothing where there are none."""
        if not self.errors:
            return {}
        problems = [problem for exc in self.errors for problem in exc.problems]
        return {"error": masked(problems), "exit_code": self.errors[0].exit_code}

    def end(self, output: Output) -> None:
        """Say them and leave with the exit code of the first, if there is one."""
        for exc in self.errors:
            for problem in exc.problems:
                output.error(problem)
        if self.errors:
            raise typer.Exit(self.errors[0].exit_code)
