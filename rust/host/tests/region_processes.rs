//! Ranks as processes, one of them killed at each step of its start: whatever it leaves, the others
//! end with an error that names it, and the next start succeeds and leaves nothing in the directory.
//!
//! A child is this program again, running the test `member` alone. It tells each stage that it
//! reaches, and stops at one of them until it is killed: nothing here depends on time.
#![cfg(target_os = "linux")]
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "what a test expects may panic, and children talk"
)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};

use kvferry_host::{
    Areas, Fingerprint, HugePages, PinnedRegion, RegionConfig, RegionError, RegionLayout,
    RegionProgress,
};

const AREA_BYTES: u64 = 1 << 20;

/// What marks the lines of a child among those of the test's own output.
const MARK: &str = "@ ";

/// What a child is told, in one environment variable.
const TASK: &str = "KVFERRY_REGION_TASK";

/// Stages of the rank that makes the file.
const MAKER: [&str; 10] = [
    "Made",
    "Locked",
    "HeaderSized",
    "Described",
    "Sized",
    "Mapped",
    "Touching",
    "Waiting",
    "Met",
    "Unnamed",
];

/// Stages of a rank that joins it.
const JOINER: [&str; 6] = [
    "Searching",
    "Joined",
    "Mapped",
    "Touching",
    "Waiting",
    "Met",
];

struct Task<'a> {
    directory: &'a Path,
    rank: usize,
    ranks: usize,
    /// How it opens the region.
    call: &'a str,
    /// The stage at which it stops; empty for none.
    hold: &'a str,
}

impl Task<'_> {
    fn start(&self) -> Member {
        let directory = self.directory.to_str().unwrap();
        let task = format!(
            "{directory} {} {} {} {}",
            self.rank, self.ranks, self.call, self.hold
        );
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "member", "--nocapture"])
            .env(TASK, task)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Member {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }
}

/// A rank in a process of its own, which ends with the test.
struct Member {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Member {
    /// Returns the next thing that the child says, or nothing at its end.
    fn hear(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            // The harness writes the name of the test before what the test writes.
            if let Some((_, said)) = line.trim_end().split_once(MARK) {
                return Some(said.to_owned());
            }
            line.clear();
        }
        None
    }

    /// Waits until the child says this.
    fn expect(&mut self, expected: &str) {
        let mut heard = Vec::new();
        while let Some(said) = self.hear() {
            if said == expected {
                return;
            }
            heard.push(said);
        }
        panic!("no {expected:?} in {heard:?}");
    }

    /// Waits until the child says how its start has ended.
    fn outcome(&mut self) -> String {
        loop {
            let said = self
                .hear()
                .expect("a child that lives says how its start ends");
            if !said.starts_with("at ") {
                return said;
            }
        }
    }

    fn go_on(&mut self) {
        // A child that has said how it failed listens no more.
        self.input.write_all(b"\n").ok();
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn end(mut self) {
        self.go_on();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // It has ended already if all went well.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn config(directory: &Path, rank: usize, ranks: usize) -> RegionConfig {
    let layout = RegionLayout {
        areas: Areas::PerRank,
        area_bytes: AREA_BYTES,
        slots: 256,
        slot_bytes: 4096,
    };
    let mut config = RegionConfig::new("engine", rank, ranks, layout, Fingerprint::of(["a model"]));
    config.directory = directory.to_owned();
    config.memory.huge_pages = HugePages::Off;
    config
}

fn byte(region: &PinnedRegion, rank: usize) -> &AtomicU8 {
    let area = region.rank_area(rank).unwrap();
    let last = usize::try_from(area.address + area.bytes - 1).unwrap();
    // SAFETY: the last byte of an area of the region, which outlives the borrow; `address` exposes it
    // and the tests use it with atomics alone.
    unsafe { AtomicU8::from_ptr(std::ptr::with_exposed_provenance_mut(last)) }
}

fn say(said: &str) {
    println!("{MARK}{said}");
    std::io::stdout().flush().unwrap();
}

fn hear() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Fills the file system of a directory.
fn fill(directory: &Path) {
    let mut file = fs::File::create(directory.join("filler")).unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
}

#[test]
#[ignore = "the body of the child processes of the other tests; does nothing by itself"]
fn member() {
    let Ok(task) = std::env::var(TASK) else {
        return;
    };
    let mut words = task.split(' ');
    let mut word = || words.next().unwrap();
    let directory = Path::new(word());
    let (rank, ranks) = (word().parse().unwrap(), word().parse().unwrap());
    let (call, hold) = (word(), word().to_owned());
    let config = config(directory, rank, ranks);
    let mut last = String::new();
    let mut progress = |progress: RegionProgress| {
        let stage = format!("{:?}", progress.stage);
        if stage != last {
            say(&format!("at {stage}"));
            last.clone_from(&stage);
        }
        if stage == hold && call == "fill" {
            fill(directory);
        } else if stage == hold {
            hear();
        }
        ControlFlow::Continue(())
    };
    let region = match call {
        "create" | "fill" => PinnedRegion::create(&config, &mut progress),
        "attach" => PinnedRegion::attach(&config, &mut progress),
        _ => PinnedRegion::open(&config, &mut progress),
    };
    let region = match region {
        Ok(region) => region,
        Err(RegionError::MemberDied { rank, .. }) => return say(&format!("lost {rank}")),
        Err(RegionError::MemberFailed { reason, .. }) => return say(&format!("told {reason:?}")),
        Err(error) => return say(&format!("error {error}")),
    };
    region.set_failed(rank as u64, true).unwrap();
    byte(&region, rank).store(u8::try_from(rank).unwrap() + 1, Ordering::Release);
    say(&format!("open {}", region.nonce()));
    hear();
    // All ranks have written by now.
    for rank in 0..ranks {
        assert!(region.is_failed(rank as u64).unwrap());
        assert_eq!(
            usize::from(byte(&region, rank).load(Ordering::Acquire)),
            rank + 1
        );
    }
}

/// Starts all ranks at once, none knowing who is first, and expects that they share one region whose
/// name is gone.
fn assert_starts(directory: &Path, ranks: usize) {
    let start = |rank| {
        let task = Task {
            directory,
            rank,
            ranks,
            call: "open",
            hold: "",
        };
        task.start()
    };
    let mut members: Vec<_> = (0..ranks).map(start).collect();
    let outcomes: Vec<_> = members.iter_mut().map(Member::outcome).collect();
    assert!(outcomes[0].starts_with("open "), "{outcomes:?}");
    assert!(
        outcomes.iter().all(|outcome| *outcome == outcomes[0]),
        "{outcomes:?}"
    );
    assert_eq!(fs::read_dir(directory).unwrap().count(), 0);
    members.into_iter().for_each(Member::end);
    assert_eq!(fs::read_dir(directory).unwrap().count(), 0);
}

/// Kills one rank of several at a stage, then starts again.
fn kill_at(directory: &Path, ranks: usize, victim: usize, makes: bool, stage: &str) {
    let start = |rank: usize| {
        let call = if makes == (rank == victim) {
            "create"
        } else {
            "attach"
        };
        // Of several ranks that are no victim one makes the file.
        let call = if !makes && rank != victim && rank != (victim + 1) % ranks {
            "attach"
        } else {
            call
        };
        let hold = if rank == victim { stage } else { "" };
        Task {
            directory,
            rank,
            ranks,
            call,
            hold,
        }
        .start()
    };
    let at = format!("at {stage}");
    let others = (0..ranks).filter(|rank| *rank != victim);
    let mut dead = start(victim);
    // A joiner that searches, and the early stages of the maker, are reached without the others.
    let alone = if makes {
        ["Made", "Locked", "HeaderSized"].as_slice()
    } else {
        &["Searching"]
    };
    if alone.contains(&stage) {
        dead.expect(&at);
        let mut others: Vec<_> = if makes {
            others.map(start).collect()
        } else {
            Vec::new()
        };
        others
            .iter_mut()
            .for_each(|other| other.expect("at Searching"));
        dead.kill();
        // An engine that loses a rank ends the rest.
        others.into_iter().for_each(Member::kill);
    } else {
        let mut others: Vec<_> = others.map(start).collect();
        dead.expect(&at);
        // A joiner that waits has said that it is there.
        let complete = !makes && ["Waiting", "Met"].contains(&stage);
        for (other, rank) in others
            .iter_mut()
            .zip((0..ranks).filter(|rank| *rank != victim))
        {
            let made = !makes && rank == (victim + 1) % ranks;
            other.expect(if complete {
                "at Met"
            } else if made {
                "at Waiting"
            } else {
                "at Joined"
            });
        }
        dead.kill();
        for mut other in others {
            let outcome = other.outcome();
            if complete {
                assert!(outcome.starts_with("open "), "{outcome}");
            } else {
                // The first to notice tells the rest.
                let lost = format!("lost {victim}");
                assert!(outcome == lost || outcome == "told MemberDied", "{outcome}");
            }
        }
    }
    assert_starts(directory, ranks);
}

fn kill_at_each_stage(directory: &Path, ranks: usize) {
    for stage in MAKER {
        println!("the maker of {ranks} ranks is killed at {stage}");
        kill_at(directory, ranks, 0, true, stage);
    }
    for stage in JOINER {
        println!("a joiner of {ranks} ranks is killed at {stage}");
        kill_at(directory, ranks, 1, false, stage);
    }
}

#[test]
fn two_ranks_start_again_after_one_is_killed_at_any_stage() {
    kill_at_each_stage(tempfile::tempdir().unwrap().path(), 2);
}

#[test]
fn four_ranks_start_again_after_one_is_killed_at_any_stage() {
    kill_at_each_stage(tempfile::tempdir_in("/dev/shm").unwrap().path(), 4);
}

#[test]
fn an_engine_killed_as_a_whole_leaves_nothing_that_matters() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    for stage in ["Described", "Mapped", "Waiting", "Met"] {
        let start = |rank| {
            let task = Task {
                directory: directory.path(),
                rank,
                ranks: 2,
                call: if rank == 0 { "create" } else { "attach" },
                hold: stage,
            };
            task.start()
        };
        let mut members = [start(0), start(1)];
        members[0].expect(&format!("at {stage}"));
        members.into_iter().for_each(Member::kill);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        assert_starts(directory.path(), 2);
    }
}

#[test]
fn ranks_that_race_agree_every_time() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    for _ in 0..20 {
        assert_starts(directory.path(), 4);
    }
}

#[test]
fn a_running_engine_is_not_disturbed_by_one_of_the_same_name() {
    let directory = tempfile::tempdir().unwrap();
    let start = |rank, call, hold| {
        let directory = directory.path();
        Task {
            directory,
            rank,
            ranks: 2,
            call,
            hold,
        }
        .start()
    };
    let mut first = start(0, "create", "");
    first.expect("at Waiting");
    let refused = start(0, "create", "").outcome();
    assert!(
        refused.contains("is in use by a running engine"),
        "{refused}"
    );
    let refused = start(0, "open", "").outcome();
    assert!(
        refused.contains("rank 0 of") && refused.contains("another running"),
        "{refused}"
    );
    let mut second = start(1, "attach", "");
    let outcomes = [first.outcome(), second.outcome()];
    assert!(
        outcomes[0].starts_with("open ") && outcomes[0] == outcomes[1],
        "{outcomes:?}"
    );
    // The name is free again, and another engine can have it.
    assert_starts(directory.path(), 2);
    first.end();
    second.end();
}

/// Runs one rank in a file system of a few MiB, which another program fills at a stage.
///
/// Skipped, with a line that says so, where a user may not mount one.
fn start_in_a_full_file_system(stage: &str) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let mut child = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c"])
        .arg("mount -t tmpfs -o size=4m tmpfs \"$0\" && exec \"$@\"")
        .arg(directory.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "member", "--nocapture"])
        .env(
            TASK,
            format!("{} 0 1 fill {stage}", directory.path().display()),
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let mut member = Member {
        input: child.stdin.take().unwrap(),
        output: BufReader::new(child.stdout.take().unwrap()),
        child,
    };
    let mut last = None;
    while let Some(said) = member.hear() {
        let more = said.starts_with("at ");
        last = Some(said);
        if !more {
            member.go_on();
            break;
        }
    }
    let status = member.child.wait().unwrap();
    if last.is_none() {
        println!("skipped: no file system of its own for a test here ({status})");
        return None;
    }
    assert!(status.success(), "after {last:?}: {status}");
    last
}

#[test]
fn a_file_system_that_fills_up_is_an_error_and_no_signal() {
    for stage in ["Locked", "HeaderSized", "Described", "Sized", "Mapped"] {
        if let Some(said) = start_in_a_full_file_system(stage) {
            let full = said.starts_with("error ") && said.contains("has too little room");
            assert!(full, "at {stage}: {said}");
        }
    }
    if let Some(said) = start_in_a_full_file_system("none") {
        assert!(said.starts_with("open "), "{said}");
    }
}
