"""`terrace explain` and hindsight: what is said of memory whose use is known."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness import HARD, Run, Sandbox, areas_of, pages_in_tiers, read_timeline, wait_until

Compiler = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("can_tier")

# Saves what can be saved, but not at a loss: what is in use stays.
PRICED = ("--window", "0.3", "--policy", "analytical", "--alpha", "0.2",
          "--usd-per-core-month", "50")  # fmt: skip
AREA_PAGES = 4096


@dataclass
class Explained:
    """A program whose areas are known, and what is said of it."""

    sandbox: Sandbox
    run: Run
    pid: int
    areas: dict[str, int]
    # Offset in the cold area of a region that is in a tier by one decision. Not all need to be:
    # the budget may be kept without the last one, and any may be the last.
    stored: int = 0
    # What was said of it then: regions move on.
    told: dict[str, Any] = field(default_factory=dict)

    def json(self, *arguments: str) -> dict[str, Any]:
        """`terrace explain PID ARGUMENTS --json`."""
        answer = self.sandbox.terrace("explain", str(self.pid), *arguments, "--json")
        assert answer.returncode == 0, answer.stderr
        explained: dict[str, Any] = json.loads(answer.stdout)
        return explained

    def at(self, area: str, offset: int = 0) -> dict[str, Any]:
        """What is said of an address in an area."""
        return self.json(hex(self.areas[area] + offset))

    def text(self, *arguments: str) -> str:
        """The same for people."""
        answer = self.sandbox.terrace("explain", str(self.pid), *arguments)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout


@pytest.fixture
def explained(sandbox: Sandbox, program: Compiler) -> Iterator[Explained]:
    """`hot_and_cold`, after its cold area went down."""
    with sandbox.start(program("hot_and_cold"), options=PRICED) as run:
        areas, pid = areas_of(run)

        def is_down() -> bool:
            new = run.windows(pid)[-3:]
            return len(new) == 3 and all(pages_in_tiers(w) >= AREA_PAGES * 3 // 4 for w in new)

        wait_until("the cold area is in tiers", is_down, 40)
        explained = Explained(sandbox, run, pid, areas)

        def has_a_stored_region() -> bool:
            for offset in range(0, AREA_PAGES << 12, 2 << 20):
                told = explained.at("cold", offset)
                went_down = told["open"] is not None and told["open"]["from"] == "dram"
                if went_down and told["region"]["stored_pages"] == 512:
                    explained.stored, explained.told = offset, told
                    return True
            return False

        wait_until("a region of the cold area is in a tier by one decision", has_a_stored_region)
        yield explained
        os.kill(pid, signal.SIGTERM)
        assert run.conclude() == 0, run.stderr()


def test_the_cold_is_stored_and_every_alternative_is_named(explained: Explained) -> None:
    """The cold area is in a tier because that saves most; the table says so for every tier."""
    told = explained.told
    assert told["tracked"] is True
    assert told["page"] == "not_in_dram", told
    region = told["region"]
    assert region["start"] == explained.areas["cold"] + explained.stored
    assert (region["pages"], region["stored_pages"]) == (512, 512)
    assert region["touched_pages"] < 60
    names = [tier["name"] for tier in explained.json()["tiers"]]
    alternatives = told["alternatives"]
    assert [a["tier"] for a in alternatives] == names
    chosen = [a for a in alternatives if a["is_chosen"]]
    assert [a["tier"] for a in chosen] == [told["chosen"]]
    assert chosen[0] is not alternatives[0]
    assert chosen[0]["usd_per_month"] < alternatives[0]["usd_per_month"]
    assert "saves" in told["why"], told["why"]
    # DRAM costs what 2 MiB of it cost, and there is nothing to wait for.
    price = explained.json()["tiers"][0]["usd_per_gib_month"]
    assert alternatives[0]["usd_per_month"] == pytest.approx(price / 512)
    assert alternatives[0]["stall_us_per_window"] == 0
    # It went down once, and is right so far.
    assert told["open"]["from"] == names[0]
    assert told["open"]["pages"] == 512
    assert told["mapping"]["perms"] == "rw-p"

    text = explained.text(hex(explained.areas["cold"] + explained.stored))
    assert any(f"=> {name} " in text for name in names[1:]), text  # it may have moved on since
    assert all(name in text for name in names)
    assert "so far: since window" in text


def test_the_hot_stays_in_dram_and_why(explained: Explained) -> None:
    """The hot area is in DRAM because it is in use."""
    told = explained.at("hot", 6 << 20)
    assert told["tracked"] is True
    assert told["page"] == "in_dram"
    assert told["chosen"] == told["alternatives"][0]["tier"]
    assert told["alternatives"][0]["is_best"] is True
    assert told["region"]["touched_pages"] > 256
    assert told["why"].startswith("It is in use: "), told["why"]
    seen = [n for n in told["region"]["touched_newest_first"] if n is not None]
    assert seen and seen[0] > 256
    assert told["alternatives"][1]["stall_us_per_window"] > 0


def test_memory_that_is_not_followed_has_a_reason(explained: Explained) -> None:
    """Too small, shared, nothing there, the stack: each is named."""

    def why(address: int) -> str:
        told = explained.json(hex(address))
        assert told["tracked"] is False
        assert "alternatives" not in told
        return str(told["why_not"])

    small = why(explained.areas["small"])
    assert "128.0 KiB" in small and "below 256.0 KiB" in small
    assert "shared memory" in why(explained.areas["shared"])
    assert "nothing is mapped" in why(0x10000)
    maps = Path(f"/proc/{explained.pid}/maps").read_text().splitlines()
    stack = next(line for line in maps if line.endswith("[stack]"))
    assert "stack of the main thread" in why(int(stack.split("-")[0], 16))
    code = next(line for line in maps if line.endswith("hot_and_cold"))
    assert "mapping of the file" in why(int(code.split("-")[0], 16))
    assert "not tracked its mapping has" in explained.text(hex(explained.areas["small"]))


@pytest.mark.skipif(os.geteuid() != 0, reason="only with CAP_IPC_LOCK the runtime locks anything")
def test_what_the_runtime_locks_is_not_the_programs(explained: Explained) -> None:
    """16 KiB of the runtime's own stack are locked: nothing is said of memory that is locked."""
    status = Path(f"/proc/{explained.pid}/status").read_text()
    locked = next(line.split() for line in status.splitlines() if line.startswith("VmLck:"))
    assert locked[1:] == ["16", "kB"], "the runtime's own, by terrace_core::state"
    limits = {limit["what"]: limit["text"] for limit in explained.json()["limits"]}
    assert "locked" not in limits["untracked"], limits
    # All that is large enough to be followed, and is not.
    maps = Path(f"/proc/{explained.pid}/maps").read_text().splitlines()
    asked = 0
    for line in maps:
        start, end = (int(address, 16) for address in line.split()[0].split("-"))
        if " rw-p 00000000 00:00 0 " not in f"{line} " or end - start < 256 << 10:
            continue
        told = explained.json(hex(start))
        if not told["tracked"]:
            asked += 1
            assert "locked" not in told["why_not"], told
    assert asked > 0, "memory of the runtime itself is not followed"


def test_a_full_medium_is_what_is_named(sandbox: Sandbox, program: Compiler) -> None:
    """Whatever is asked to be saved, a file of 2 MiB holds no more: time is not what is short."""
    config = sandbox.folder / "small.toml"
    config.write_text(
        '[[medium]]\nname = "disk"\nkind = "file"\ncapacity_mib = 2\nusd_per_gib_month = 0.02\n'
        f"directory = {json.dumps(str(sandbox.folder))}\n"
        '[[tier]]\ncodec = "lz4"\npool = "zsmalloc"\nmedium = "disk"\n'
    )
    options = ("--config", str(config), "--window", "0.3", "--alpha", "0")
    with sandbox.start(program("hot_and_cold"), options=options) as run:
        areas, pid = areas_of(run)
        explained = Explained(sandbox, run, pid, areas)

        def full() -> str:
            limits = {limit["what"]: limit["text"] for limit in explained.json()["limits"]}
            return str(limits.get("full", ""))

        wait_until("a window has ended", lambda: len(run.windows(pid)) > 0)
        wait_until("the file is full", lambda: full() != "", 40)
        assert 'raise capacity_mib of "disk", which is 2' in full()
        assert "lower --alpha" not in explained.text()
        os.kill(pid, signal.SIGTERM)
        assert run.conclude() == 0, run.stderr()


def test_the_application_as_a_whole(explained: Explained) -> None:
    """Every part of the answer is there, and agrees with what is known of the program."""
    told = explained.json()
    help_text = explained.sandbox.terrace("explain", "--help").stdout
    for key in told:
        assert key in help_text, f"{key} is not in --help"
    for key in ("tiers", "groups", "limits", "plans"):
        for item in told[key]:
            missing = [field for field in item if field not in help_text]
            assert not missing, f"{key}: {missing} not in --help"
    region = explained.at("cold", explained.stored)
    for part in (region, region["region"], region["alternatives"][0], region["open"]):
        missing = [field for field in part if field not in help_text]
        assert not missing, f"{missing} not in --help"

    assert told["policy"]["kind"] == "analytical" and told["policy"]["alpha"] == 0.2
    assert told["budget"]["of"] == "money"
    left = told["budget"]["allowed"] - told["budget"]["spent"]
    assert told["budget"]["left"] == pytest.approx(left)
    assert told["usd_per_stall_s"] > 0
    assert told["lost"]["running_ms"] > 0
    assert all(ms >= 0 for ms in told["lost"].values())
    stored = sum(tier["pages"] for tier in told["tiers"][1:])
    assert stored >= AREA_PAGES * 3 // 4
    # The hot area is the most that is left, and it is in use.
    limits = {limit["what"]: limit for limit in told["limits"]}
    assert limits["in_use"]["pages"] + limits.get("budget", {"pages": 0})["pages"] >= AREA_PAGES / 2
    assert "untracked" in limits, "the shared area"
    assert [limit["usd_per_month"] for limit in told["limits"]] == sorted(
        (limit["usd_per_month"] for limit in told["limits"]), reverse=True
    )
    groups = [group for group in told["groups"] if "others" not in group]
    starts = [group["start"] for group in groups]
    assert explained.areas["cold"] in starts and explained.areas["hot"] in starts
    assert told["hindsight"]["demotions"] >= 6
    assert all(plan["moves"] and plan["window"] <= told["window"] for plan in told["plans"])
    assert told["plans"]
    # All that is asked for, and no move that carries nothing.
    assert all(move["pages"] > 0 for plan in told["plans"] for move in plan["moves"])
    one = explained.json("--top", "1")
    assert len(one["groups"]) <= 2 and len(one["plans"]) <= 1 and len(one["ended"]) <= 1
    # A group is named by an address that can be asked about.
    assert all(explained.json(hex(group["address"]))["mapping"] for group in groups)
    # Nobody knows what is not followed but by what is left of the whole.
    shared = AREA_PAGES * 4096
    assert told["untracked_bytes"] >= shared
    assert told["policy"]["budget_money"] is None

    text = explained.text()
    for part in ("in the last window:", "budget", "a second of waiting is worth",
                 "what keeps it from saving more", "hindsight", "the last plans",
                 "analytical, tiers auto, --alpha 0.2\n", "\n  not followed "):  # fmt: skip
        assert part in text, text
    status = explained.sandbox.terrace("status", str(explained.pid)).stdout
    assert "analytical, tiers auto, --alpha 0.2\n" in status and "\n  not followed " in status
    # The session's own id will do as long as it has one program.
    by_session = explained.sandbox.terrace("explain", str(explained.run.pid), "--json")
    assert json.loads(by_session.stdout)["pid"] == explained.pid


def test_errors_are_one_clear_line_each(explained: Explained) -> None:
    """No such process, one that is not under Terrace, and an address that is none."""

    def error(*arguments: str) -> str:
        answer = explained.sandbox.terrace("explain", *arguments)
        assert answer.returncode != 0 and answer.stdout == ""
        return answer.stderr

    for wrong, said in [
        (("4194399",), "there is no process 4194399"),
        ((str(os.getpid()),), "is not under Terrace"),
    ]:
        lines = error(*wrong).splitlines()
        assert len(lines) == 1 and said in lines[0], lines
    assert "not an address of a program" in error(str(explained.pid), "0xzz")


def test_what_is_never_touched_again_was_right(sandbox: Sandbox, program: Compiler) -> None:
    """Cold memory that stays down is right in hindsight, live and at the end."""
    with sandbox.start(program("hot_and_cold"), options=HARD) as run:
        areas = {}
        while not (line := run.until("")).startswith("PID"):
            areas[line.split()[1]] = int(line.split()[2], 16)
        pid = int(line.split()[1])
        told: dict[str, Any] = {}

        def is_right() -> bool:
            answer = sandbox.terrace("explain", str(pid), hex(areas["cold"]), "--json")
            if answer.returncode == 0:
                told.update(json.loads(answer.stdout))
            record = told.get("open") or {"window": told.get("window"), "is_right": False}
            return told != {} and record["is_right"] and told["window"] >= record["window"] + 8

        wait_until("the cold area was down long enough to pay", is_right, 70)
        record = told["open"]
        assert (record["faults"], record["stall_ms"]) == (0, 0)
        assert record["move_cpu_ms"] > 0
        # What it saved is what 2 MiB save: pages, price and time. A window may be longer than it
        # should on a busy machine, and the first counts half.
        tiers = json.loads(sandbox.terrace("explain", str(pid), "--json").stdout)["tiers"]
        kept = {tier["name"]: tier["usd_per_gib_month_kept"] for tier in tiers}
        saves = (kept[record["from"]] - kept[record["to"]]) / 512 / (365.25 / 12 * 86_400)
        windows = run.windows(pid)
        t_s = {window["window"]: window["t_s"] for window in windows}
        seconds = t_s[told["window"]] - t_s[record["window"]]
        assert record["saved_usd"] == pytest.approx(saves * seconds, rel=0.3)
        os.kill(pid, signal.SIGTERM)
        assert run.conclude() == 0
        assert "were right in hindsight" in run.stderr()
        # The end report has the share of the whole bill, by memory and time.
        windows = run.windows(pid)
        ends = [window["t_s"] for window in windows]
        lasted = [end - start for start, end in zip([0.0, *ends[:-1]], ends, strict=True)]
        bill = [w["managed_bytes"] * s for w, s in zip(windows, lasted, strict=True)]
        saved = sum(b * w["tco_saved"] for b, w in zip(bill, windows, strict=True))
        said = re.search(
            r"(-?[\d.]+) % of memory TCO saved on average \((-?[\d.]+) %", run.stderr()
        )
        assert said is not None, run.stderr()
        assert float(said[1]) == pytest.approx(100 * saved / sum(bill), abs=0.2)
        assert float(said[2]) == pytest.approx(100 * windows[-1]["tco_saved"], abs=0.06)


def test_what_comes_back_at_once_was_wrong(sandbox: Sandbox, program: Compiler) -> None:
    """A program that reads all of its memory whenever it is down: every demotion is a mistake."""
    # One tier, so that nothing can be said to have moved on, and no price but the default.
    config = sandbox.folder / "one.toml"
    config.write_text('[[tier]]\ncodec = "zstd"\npool = "zsmalloc"\nmedium = "dram"\n')
    options = ("--config", str(config), "--window", "0.2", "--policy", "waterfall",
               "--threshold", "100%")  # fmt: skip
    with sandbox.start(program("hot_and_cold"), "thrash", options=options) as run:
        pid = int(run.until("PID").split()[1])
        for _ in range(4):
            run.until("WAIT")
        windows = len(run.windows(pid))
        wait_until("two windows more", lambda: len(run.windows(pid)) >= windows + 2)
        told = json.loads(sandbox.terrace("explain", str(pid), "--json", "--top", "1000").stdout)
        came_back = [record for record in told["ended"] if record["end"] == "came_back"]
        assert len(came_back) >= 8
        wrong = [record for record in came_back if not record["is_right"]]
        assert len(wrong) == len(came_back), [r for r in came_back if r["is_right"]][:3]
        for record in wrong:
            assert record["faults"] > 0 and record["stall_ms"] > 0 and record["balance_usd"] < 0
        hindsight = told["hindsight"]
        assert hindsight["wrong"] >= len(wrong)
        # Nothing is lost between the whole and its parts.
        for key in ("demotions", "right", "wrong", "open", "not_done", "faults"):
            assert hindsight[key] == sum(tier[key] for tier in hindsight["tiers"]), key
        for key in ("saved_usd", "stall_ms", "move_cpu_ms", "regret_usd"):
            parts = sum(tier[key] for tier in hindsight["tiers"])
            assert hindsight[key] == pytest.approx(parts), key
        scored = hindsight["right"] + hindsight["wrong"] + hindsight["not_done"]
        assert hindsight["demotions"] == scored + hindsight["open"]
        assert hindsight["regret_usd"] >= sum(-record["balance_usd"] for record in wrong) * 0.999
        assert read_timeline(run.timeline)[-1]["hindsight"]["wrong"] >= 8
        assert "demotions were right" in sandbox.terrace("status", str(pid)).stdout
        # It may be asking to be taken down again; it goes on without an answer when it is ended.
        os.kill(pid, signal.SIGKILL)


def test_where_a_core_is_dear_what_is_cold_stays_and_it_is_said(
    sandbox: Sandbox, program: Compiler
) -> None:
    """Under the default policy moves must save what they cost, whoever waits for them."""
    dear = ("--window", "0.3", "--usd-per-core-month", "10000")
    with sandbox.start(program("hot_and_cold"), options=dear) as run:
        areas, pid = areas_of(run)
        explained = Explained(sandbox, run, pid, areas)
        wait_until("the program was looked at", lambda: len(run.windows(pid)) >= 16, 40)
        assert all(pages_in_tiers(w) == 0 for w in run.windows(pid))
        told = explained.at("cold", 4 << 20)
        assert told["region"]["touched_pages"] < 60
        assert told["why"].startswith("It stays because a core has a price: "), told["why"]
        assert explained.at("hot", 6 << 20)["why"].startswith("It is in use: ")
        limits = {limit["what"]: limit for limit in explained.json()["limits"]}
        assert limits["processor"]["pages"] >= AREA_PAGES // 2, limits
        assert "10000 dollars a month" in limits["processor"]["text"]
        os.kill(pid, signal.SIGTERM)
        assert run.conclude() == 0, run.stderr()
