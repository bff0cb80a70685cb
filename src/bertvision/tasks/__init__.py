"""Tasks: where examples come from.

task = build_task(TaskConfig(name="rte", data="glue/RTE"))      task.read("train") → [Example, …]
"""

from bertvision.data.examples import Answer, Example
from bertvision.tasks.base import Task, TaskInfo
from bertvision.tasks.config import TASKS, TaskConfig, build_task, check_task_config

__all__ = ["TASKS", "Answer", "Example", "Task", "TaskConfig", "TaskInfo", "build_task", "check_task_config"]
