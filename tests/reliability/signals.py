"""Ctrl-C, SIGTERM and SIGHUP at any moment of a command, from a cold start or from a fork: one sentence, the exit code,
and the same results once the command was run again. And two commands at once in one folder."""

import signal
import time
from random import Random

from tests.reliability import processes
from tests.reliability.processes import CASES, Cold, Made, choose, clean, compare, find_junk, finish, fork, read_files
from tests.reliability.trials import Outcome

NAME = "signals"
ABOUT = "SIGINT, SIGTERM and SIGHUP at random moments, then the same command again; two commands at once in one folder"
TRIALS, SLICE = 150, 9
SENTENCES = {signal.SIGINT: "Interrupted.", signal.SIGTERM: "Terminated.", signal.SIGHUP: "Terminated."}
RESUMES = ("run", "finetune", "encode", "train", "train on a store", "search", "evaluate")
TOGETHER = ("run", "train", "train on a store", "finetune", "search", "fit again", "kit", "report", "encode in parts")
ENDED = "ended before"
KEPT = "Interrupted: "
"""`fit` goes on after Ctrl-C, with the best model so far."""
prepare = processes.prepare


def attempt(made: Made, number: int, random: Random) -> Outcome:
    if number % 3 == 2:
        return _attempt_together(made, random)
    name, is_cold = choose(random), number % 3 == 1
    number = random.choice(list(SENTENCES))
    made.begin(name)
    if is_cold:
        moment = random.uniform(0, 1) if random.random() < 0.5 else random.uniform(0, 1.2 * made.cold_seconds)
    else:
        moment = random.uniform(0, made.seconds[name])
    run = Cold(made, CASES[name].words) if is_cold else fork(made, CASES[name].words)
    time.sleep(moment)
    code = run.poll()
    is_sent = code is None
    if is_sent:
        run.send(number)
        code = run.wait()
    said, case = run.said(), f"{signal.Signals(number).name}, {'cold start' if is_cold else 'fork'}"
    result = _judge(name, number, code, said, moment)
    if result == ENDED and is_sent and KEPT not in said:
        result = "ended meanwhile"
    detail = f"{name}, {case} after {moment:.3f} s: exit {code}: {said[-600:]}"
    if not result:
        return Outcome(case, "wrong end", False, detail)
    if name.startswith("fit") and code == 0 and KEPT in said:  # another model than that of an undisturbed fit
        return Outcome(case, "best so far", (made.work / "model" / "model.json").is_file(), detail)
    wrong = finish(made, name)
    return Outcome(case, "wrong" if wrong else result, not wrong, f"{detail}; then {wrong}" if wrong else "")


def _judge(name: str, number: int, code: int | None, said: str, moment: float) -> str:
    """How a command ended, in words; '' if it ended as no command should."""
    if code == 0:
        return ENDED
    is_early = moment < 1 and "/bertvision/" not in said and SENTENCES[number] not in said
    if is_early and code in ((-number, 1, 130) if number == signal.SIGINT else (-number,)):
        return "before our first line"  # Python itself was starting, which ends in its own way
    lines = [line for line in said.splitlines() if SENTENCES[number] in line and KEPT not in line]
    saved = " Progress is saved: run the same command again to resume."
    expected = {SENTENCES[number], SENTENCES[number] + (saved if name.split(",")[0] in RESUMES else "")}
    is_good = code == 128 + number and len(lines) == 1 and lines[0] in expected and "Traceback" not in said
    return "sentence" if is_good else ""


def _attempt_together(made: Made, random: Random) -> Outcome:
    name = random.choice(TOGETHER)
    if name == "encode in parts":
        return _encode_in_parts(made, random)
    case, waits = CASES[name], random.random() < 0.4
    made.begin(name)
    words = (*case.words, "--wait") if waits else case.words
    some = []
    for number in (1, 2):
        some.append(fork(made, words, name=f"err{number}"))
        time.sleep(random.uniform(0, 0.7 * made.seconds[name]) if number == 1 else 0)
    codes, said = [run.wait() for run in some], [run.said() for run in some]
    shown = f"two at once, --wait: {name}" if waits else f"two at once: {name}"
    detail = f"exits {codes}: {said[0][-500:]} | {said[1][-500:]}"
    if "Traceback" in "".join(said) or sorted(map(str, codes)) not in (["0", "0"], ["0", "2"]):
        return Outcome(shown, "wrong end", False, detail)
    if 2 in codes:
        winner, loser = some[codes.index(0)], said[codes.index(2)]
        is_told = "another process is writing to" in loser and f"process {winner.process} " in loser
        if waits or not (is_told and "--wait" in loser):
            return Outcome(shown, "wrong sentence", False, detail)
    if waits and any(text.count("waiting: ") > 1 for text in said):
        return Outcome(shown, "said twice", False, detail)
    wrong = ", ".join(find_junk(made.work)) or _compare(made, name)
    result = "one refused" if 2 in codes else "one waited" if "waiting: " in "".join(said) else "one after the other"
    return Outcome(shown, "wrong" if wrong else result, not wrong, f"{wrong}: {detail}" if wrong else "")


def _encode_in_parts(made: Made, random: Random) -> Outcome:
    """Parts of one store are meant to be written together."""
    made.begin("encode")
    words = CASES["encode"].words
    some = []
    for part in ("1/2", "2/2"):
        some.append(fork(made, (*words, "--part", part), name=f"err{part[0]}"))
        time.sleep(random.uniform(0, made.seconds["encode"]))
    codes, said = [run.wait() for run in some], [run.said() for run in some]
    wrong = "" if codes == [0, 0] else f"exits {codes}"
    clean(made.work)
    wrong = wrong or finish(made, "encode")
    detail = f"{wrong}: {said[0][-500:]} | {said[1][-500:]}"
    return Outcome("two at once: encode --part", "wrong" if wrong else "both", not wrong, detail if wrong else "")


def _compare(made: Made, name: str) -> str:
    return compare(read_files(made.work, CASES[name].is_exact), made.expected[name])
