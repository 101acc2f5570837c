//! Random histories beside the model: after every call what it answered, and after most what can be
//! seen of the engine.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvferry::transfer::{Direction, JobId, Place, Priority, SubmitError};

use crate::common::Numbers;
use crate::model::{Job, Model, Stage};
use crate::script::{Call, Notify, Script, Start};
use crate::world::{
    BLOCKS, Copies, EXPEDITED, End, GROUPS, LOAD, STORE, World, end, layout, options, within_time,
};

/// Places that the jobs use, few enough that they meet.
const PLACES: usize = 12;

/// An engine, its model, and the dice.
struct History<const BLOCKING: bool> {
    world: World<BLOCKING>,
    model: Model,
    numbers: Numbers,
    next: u64,
    threads: usize,
    tally: HashMap<&'static str, u64>,
}

impl<const BLOCKING: bool> History<BLOCKING> {
    fn new(seed: u64) -> Self {
        let mut numbers = Numbers(seed);
        let capacity = 2 + numbers.below(10);
        let in_flight_per_lane = [1, 2, usize::MAX][numbers.below(3)];
        let options = options(capacity, in_flight_per_lane);
        Self {
            world: World::with(Notify::Wakes, BLOCKS, options),
            model: Model::new(capacity, in_flight_per_lane),
            numbers,
            next: 0,
            threads: 0,
            tally: HashMap::new(),
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    /// Waits until a thread of the engine's has done all that it can.
    fn settle(&mut self) {
        if BLOCKING {
            self.world.wait_until_asleep(self.threads);
            self.model.advance();
        }
    }

    fn script(&mut self) -> Script {
        let numbers = &mut self.numbers;
        let mut script = Script {
            polls: (numbers.below(3) == 0).then_some(0),
            quiesces: (numbers.below(3) == 0).then_some(0),
            ..Script::SMOOTH
        };
        let failing = [Call::Fails, Call::Panics][numbers.below(2)];
        match numbers.below(12) {
            0 => script.fence = failing,
            1 => script.start = Start::NotStarted,
            2 => script.start = Start::Started,
            3 | 4 => script.poll = failing,
            5 if numbers.below(20) == 0 => script.start = Start::Panics,
            _ => {}
        }
        if numbers.below(60) == 0 {
            script.quiesce = failing;
        }
        script
    }

    fn copies(&mut self) -> Copies {
        let mut copies = Copies::default();
        let numbers = &mut self.numbers;
        let counts = [3, 2, 3].map(|most| numbers.below(most + 1));
        // Blocks of a class and slots are drawn without return: a job may not write one twice.
        let mut draw = |count: usize| {
            let mut places: Vec<i64> = (0..PLACES as i64).collect();
            for at in 0..count {
                places.swap(at, at + numbers.below(PLACES - at));
            }
            places.truncate(count);
            places
        };
        let mut shared = draw(counts[0] + counts[2]);
        copies.blocks[2] = shared.split_off(counts[0]);
        copies.blocks[0] = shared;
        copies.blocks[1] = draw(counts[1]);
        copies.slots = draw(counts[0] + counts[1] + counts[2]);
        copies
    }

    fn submit(&mut self) {
        // At times one that is known.
        let known = self.model.jobs.last().filter(|job| !job.collected);
        let known = known.map(|job| job.id);
        let id = known.filter(|_| self.numbers.below(16) == 0);
        let id = id.unwrap_or(self.next);
        self.next = self.next.max(id + 1);
        let mut way = [STORE, STORE, LOAD, LOAD, EXPEDITED][self.numbers.below(5)];
        if self.numbers.below(32) == 0 {
            way = (Direction::Store, Priority::Expedited);
        }
        let mut copies = self.copies();
        let unsound = self.numbers.below(32) == 0;
        if unsound {
            copies.slots.push(0);
        }
        let script = self.script();
        let answer = self.world.submit(id, way, &copies, script);
        let model = &mut self.model;
        let fits = model.uncollected().count() < model.capacity;
        let duplicate = model.uncollected().any(|job| job.id == id);
        let (right, what) = if way.0 == Direction::Store && way.1 == Priority::Expedited {
            (
                matches!(answer, Err(SubmitError::ExpeditedStore)),
                "expedited",
            )
        } else if duplicate {
            let right = matches!(answer, Err(SubmitError::Duplicate(job)) if job.0 == id);
            (right, "duplicate")
        } else if !fits {
            (matches!(answer, Err(SubmitError::Full { .. })), "full")
        } else if unsound {
            (matches!(answer, Err(SubmitError::Plan(_))), "unsound")
        } else if script.fence != Call::Works {
            (matches!(answer, Err(SubmitError::Backend(_))), "fence")
        } else {
            self.threads = usize::from(BLOCKING);
            model.advance();
            let job = Job {
                id,
                way,
                copies,
                script,
                stage: Stage::Waits,
                stood_aside: false,
                collected: false,
            };
            let what = match answer {
                Ok(()) => "taken",
                Err(SubmitError::Poisoned(_)) => "poisoned",
                _ => "conflict",
            };
            (model.submit(job, &answer), what)
        };
        assert!(right, "{answer:?} where {what} was due");
        self.count(what);
    }

    fn finish(&mut self) {
        let jobs = self.model.jobs.iter().filter(|job| job.in_flight());
        let started = jobs.filter(|job| [Stage::Runs, Stage::Quarantined].contains(&job.stage));
        let started: Vec<u64> = started.map(|job| job.id).collect();
        if started.is_empty() {
            return;
        }
        let id = started[self.numbers.below(started.len())];
        self.world.control.finish(id);
        let job = self.model.job(id);
        match job.stage {
            Stage::Quarantined => job.script.quiesces = Some(0),
            _ => job.script.polls = Some(0),
        }
    }

    fn cancel(&mut self) {
        // Half of the time one that may wait, else any.
        let ids = self.model.jobs.len() + 1;
        let any = self.numbers.below(ids) as u64;
        let mut waits = self.model.jobs.iter();
        let waits = waits
            .find(|job| job.stage == Stage::Waits)
            .map(|job| job.id);
        let id = waits.filter(|_| self.numbers.below(2) == 0).unwrap_or(any);
        let cancelled = self.world.engine.cancel(JobId(id));
        let waits = |job: &Job| job.id == id && job.stage == Stage::Waits;
        let at = self.model.jobs.iter().position(waits);
        assert_eq!(cancelled, at.is_some(), "cancel {id}");
        if let Some(at) = at {
            self.model.end(at, End::Cancelled);
            self.count("cancelled");
        }
    }

    fn wait(&mut self) {
        let ids = self.model.jobs.len() + 2;
        let jobs: Vec<JobId> = (0..1 + self.numbers.below(3))
            .map(|_| JobId(self.numbers.below(ids) as u64))
            .collect();
        let zero = Some(Duration::ZERO);
        let ended = self.world.engine.wait(&jobs, zero);
        self.model.advance();
        let in_flight = |job: &Job| job.in_flight() && jobs.contains(&JobId(job.id));
        assert_eq!(ended, !self.model.jobs.iter().any(in_flight), "{jobs:?}");
        let drained = self.world.engine.drain(zero);
        assert_eq!(drained, !self.model.jobs.iter().any(Job::in_flight));
    }

    fn collect(&mut self) {
        let results = self.world.engine.poll_finished();
        self.model.advance();
        let ended = std::mem::take(&mut self.model.ended);
        assert_eq!(results.len(), ended.len(), "{results:?} for {ended:?}");
        for way in [STORE, LOAD, EXPEDITED] {
            let mut of_lane = |ids: Vec<u64>| -> Vec<u64> {
                let mut ids = ids;
                ids.retain(|&id| {
                    let job = self.model.job(id);
                    let cancelled = job.stage == Stage::Ended(End::Cancelled);
                    job.way == way && !cancelled && !job.stood_aside
                });
                ids
            };
            let theirs = of_lane(results.iter().map(|it| it.job.0).collect());
            assert_eq!(theirs, of_lane(ended.clone()), "{way:?}");
        }
        for result in results {
            let job = self.model.job(result.job.0);
            assert!(!job.collected, "{} twice", job.id);
            assert_eq!(job.stage, Stage::Ended(end(&result)));
            assert_eq!(result.direction, job.way.0);
            let copied = result.outcome.as_ref().map_or(0, |it| it.bytes());
            let success = job.stage == Stage::Ended(End::Success);
            assert_eq!(copied, if success { job.copies.bytes() } else { 0 });
            let lost = job.stage == Stage::Ended(End::Quarantined);
            assert_eq!(result.owner.is_none(), lost);
            job.collected = true;
            self.count("collected");
        }
    }

    fn compare(&mut self) {
        let stats = self.world.engine.stats();
        self.model.advance();
        assert_eq!(stats, self.model.stats());
        for number in 0..PLACES as u64 + 1 {
            let slot = Place::Slot(number);
            let idle = self.world.engine.is_idle_slot(number);
            assert_eq!(idle, self.model.is_idle(slot), "{slot:?}");
            for class in 0..2 {
                let idle = self.world.engine.is_idle_block(class, number);
                let block = Place::Block {
                    class,
                    block: number,
                };
                assert_eq!(idle, self.model.is_idle(block), "{block:?}");
            }
        }
        let lost = |job: &Job| job.stage == Stage::Ended(End::Quarantined);
        let owners = self.model.jobs.iter();
        let owners = owners.filter(|job| lost(job) || !job.collected).count();
        assert_eq!(self.world.owners(), owners, "owners");
        self.world.control.check();
    }

    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            match self.numbers.below(16) {
                0..7 => self.submit(),
                7..12 => self.finish(),
                12 => self.cancel(),
                13 => self.wait(),
                _ => self.collect(),
            }
            self.settle();
            if self.numbers.below(3) > 0 {
                self.compare();
            }
        }
        while self.model.jobs.iter().any(Job::in_flight) {
            self.finish();
            self.settle();
            self.compare();
        }
        self.collect();
        self.compare();
    }
}

fn histories<const BLOCKING: bool>() {
    const STEPS: usize = 400;
    let factor: u64 = std::env::var("KVFERRY_STRESS")
        .map_or(1, |factor| factor.parse().expect("a number of times"));
    let at = Arc::new(Mutex::new(String::new()));
    let says = Arc::clone(&at);
    within_time(&at, move || {
        let mut tally: HashMap<&str, u64> = HashMap::new();
        for seed in 0..250 * factor {
            *says.lock().expect("nothing panics") = format!("seed {seed}");
            let mut history = History::<BLOCKING>::new(seed);
            history.run(STEPS);
            for (what, count) in &history.tally {
                *tally.entry(what).or_default() += count;
            }
            let control = Arc::clone(&history.world.control);
            let lost = |job: &Job| job.stage == Stage::Ended(End::Quarantined);
            let lost = history.model.jobs.iter().any(lost);
            drop(history);
            assert_eq!(control.backend_is_dropped(), !lost);
            assert_eq!(control.alive().0, 0, "fences");
            control.check();
        }
        eprintln!("{tally:?}");
        let seen = [
            "taken",
            "conflict",
            "poisoned",
            "full",
            "duplicate",
            "expedited",
            "unsound",
            "fence",
            "cancelled",
            "collected",
        ];
        for what in seen {
            assert!(tally.get(what) >= Some(&20), "{what}: {tally:?}");
        }
    });
}

#[test]
fn an_engine_that_never_blocks_does_what_the_model_does() {
    histories::<false>();
}

#[test]
fn an_engine_that_may_block_does_what_the_model_does() {
    histories::<true>();
}

#[test]
fn groups_of_the_model_are_those_of_the_layout() {
    let layout = layout(BLOCKS);
    let classes: Vec<_> = (0..GROUPS).map(|group| layout.block_class(group)).collect();
    assert_eq!(classes, [Some(0), Some(1), Some(0)]);
}
