"""A progress display limited to the height of the terminal."""

from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.progress import Progress, Task

__all__ = ["BoundedProgress"]


class BoundedProgress(Progress):
    """Shows unfinished and the latest finished tasks while it runs, and all tasks at the end."""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the lines to show."""
        tasks = [task for task in self.tasks if task.visible]
        if tasks and self.live.is_started and self.console.is_terminal:  # without tasks, `live` may not exist yet
            tasks = _select_tasks(tasks, self.console.height)
        yield self.make_tasks_table(tasks)


def _select_tasks(tasks: Sequence[Task], room: int) -> list[Task]:
    surplus = max(0, len(tasks) - room)
    hidden = {task.id for task in [task for task in tasks if task.finished][:surplus]}
    return [task for task in tasks if task.id not in hidden][-room:]
