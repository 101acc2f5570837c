//! What an engine of jobs does, as plainly as it can be said.
//!
//! There are no queues, counters or tables: all jobs are gone over again until nothing changes. In
//! which order jobs of different lanes end is not said.

use std::collections::{HashMap, HashSet};

use kvferry::transfer::{Direction, JobStats, Place, SubmitError};

use crate::script::{Call, Script, Start};
use crate::world::{Copies, End, Way};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Waits,
    Runs,
    /// Not started, or not well; it ends in its turn, or stands aside from then on.
    Over,
    Quarantined,
    Ended(End),
}

#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) id: u64,
    pub(crate) way: Way,
    pub(crate) copies: Copies,
    pub(crate) script: Script,
    pub(crate) stage: Stage,
    /// Whether its end may come out of its turn.
    pub(crate) stood_aside: bool,
    pub(crate) collected: bool,
}

impl Job {
    pub(crate) fn in_flight(&self) -> bool {
        !matches!(self.stage, Stage::Ended(_))
    }

    fn uses(&self) -> HashMap<Place, bool> {
        uses(self.way, &self.copies)
    }
}

/// What a job touches, and whether it writes there.
fn uses((direction, _): Way, copies: &Copies) -> HashMap<Place, bool> {
    let store = direction == Direction::Store;
    let slots = copies
        .slots
        .iter()
        .map(|slot| (Place::Slot(slot.cast_unsigned()), store));
    let blocks = [0, 1, 0].into_iter().zip(&copies.blocks);
    let blocks = blocks.flat_map(|(class, blocks)| {
        blocks.iter().map(move |block| {
            let block = block.cast_unsigned();
            (Place::Block { class, block }, !store)
        })
    });
    slots.chain(blocks).collect()
}

/// See the module.
pub(crate) struct Model {
    pub(crate) capacity: usize,
    in_flight_per_lane: usize,
    /// In the order of their submits.
    pub(crate) jobs: Vec<Job>,
    poisoned: HashSet<Place>,
    /// Jobs that have ended and were not collected, in the order of their ends.
    pub(crate) ended: Vec<u64>,
    stats: JobStats,
}

impl Model {
    pub(crate) fn new(capacity: usize, in_flight_per_lane: usize) -> Self {
        Self {
            capacity,
            in_flight_per_lane,
            jobs: Vec::new(),
            poisoned: HashSet::new(),
            ended: Vec::new(),
            stats: JobStats::default(),
        }
    }

    pub(crate) fn job(&mut self, id: u64) -> &mut Job {
        let mut jobs = self.jobs.iter_mut().rev();
        jobs.find(|job| job.id == id).expect("it was taken")
    }

    pub(crate) fn uncollected(&self) -> impl Iterator<Item = &Job> {
        self.jobs.iter().filter(|job| !job.collected)
    }

    pub(crate) fn end(&mut self, at: usize, how: End) {
        let job = &mut self.jobs[at];
        job.stage = Stage::Ended(how);
        self.ended.push(job.id);
        let uses = job.uses();
        match how {
            End::Success => {
                self.stats.succeeded += 1;
                let bytes = job.copies.bytes();
                match job.way.0 {
                    Direction::Store => self.stats.bytes_stored += bytes,
                    Direction::Load => self.stats.bytes_loaded += bytes,
                }
            }
            End::Failed => self.stats.failed += 1,
            End::Cancelled => self.stats.cancelled += 1,
            End::Quarantined => {
                self.stats.failed += 1;
                self.poisoned.extend(uses.into_keys());
            }
        }
    }

    /// Whatever can end, ends; whatever can start, starts.
    pub(crate) fn advance(&mut self) {
        while (0..self.jobs.len()).any(|at| self.step(at)) {}
    }

    fn step(&mut self, at: usize) -> bool {
        let Job { way, script, .. } = self.jobs[at];
        let before = |stages: &[Stage]| {
            let lane = self.jobs[..at].iter().filter(|job| job.way == way);
            lane.filter(|job| stages.contains(&job.stage)).count()
        };
        let first = before(&[Stage::Waits, Stage::Runs, Stage::Over]) == 0;
        match self.jobs[at].stage {
            Stage::Waits => {
                let running = before(&[Stage::Runs, Stage::Over]);
                if before(&[Stage::Waits]) > 0 || running >= self.in_flight_per_lane {
                    return false;
                }
                self.jobs[at].stage = match script.start {
                    Start::Works => Stage::Runs,
                    _ => Stage::Over,
                };
                true
            }
            Stage::Over if first => {
                match script.start {
                    Start::Started => self.stand_aside(at),
                    Start::Panics => self.end(at, End::Quarantined),
                    _ => self.end(at, End::Failed),
                }
                true
            }
            Stage::Runs if first && script.polls == Some(0) => {
                match script.poll {
                    Call::Works => self.end(at, End::Success),
                    _ => self.stand_aside(at),
                }
                true
            }
            Stage::Quarantined if script.quiesces == Some(0) => {
                self.end_quiet(at);
                true
            }
            _ => false,
        }
    }

    /// A job that failed leaves its turn, if there is anything to wait for.
    fn stand_aside(&mut self, at: usize) {
        if self.jobs[at].script.quiesces == Some(0) {
            self.end_quiet(at);
        } else {
            self.jobs[at].stage = Stage::Quarantined;
            self.jobs[at].stood_aside = true;
        }
    }

    fn end_quiet(&mut self, at: usize) {
        match self.jobs[at].script.quiesce {
            Call::Works => self.end(at, End::Failed),
            _ => self.end(at, End::Quarantined),
        }
    }

    pub(crate) fn is_idle(&self, place: Place) -> bool {
        let mut in_flight = self.jobs.iter().filter(|job| job.in_flight());
        !self.poisoned.contains(&place) && !in_flight.any(|job| job.uses().contains_key(&place))
    }

    /// Whether an answer to a submit that could be planned and had its fence is right. Takes the job
    /// if so.
    pub(crate) fn submit(&mut self, job: Job, answer: &Result<(), SubmitError>) -> bool {
        let uses = job.uses();
        let clash = |other: &Job, place: Place| {
            let theirs = other.in_flight().then(|| other.uses());
            let theirs = theirs.and_then(|theirs| theirs.get(&place).copied());
            theirs.is_some_and(|writes| writes || uses[&place])
        };
        let poisoned = |place: &Place| self.poisoned.contains(place);
        match *answer {
            Ok(()) => {
                let mut places = uses.keys();
                let free = places.all(|&place| {
                    !poisoned(&place) && !self.jobs.iter().any(|job| clash(job, place))
                });
                self.stats.submitted += 1;
                self.jobs.push(job);
                self.advance();
                free
            }
            Err(SubmitError::Poisoned(place)) => uses.contains_key(&place) && poisoned(&place),
            Err(SubmitError::Conflict { with, place }) => {
                let mut others = self.jobs.iter().filter(|other| other.id == with.0);
                uses.contains_key(&place) && others.any(|other| clash(other, place))
            }
            _ => false,
        }
    }

    pub(crate) fn stats(&self) -> JobStats {
        let count = |stage: &dyn Fn(&Stage) -> bool| {
            self.uncollected().filter(|job| stage(&job.stage)).count() as u64
        };
        let mut stats = self.stats;
        stats.queued = count(&|stage| *stage == Stage::Waits);
        stats.quarantined = count(&|stage| *stage == Stage::Quarantined);
        stats.uncollected = count(&|stage| matches!(stage, Stage::Ended(_)));
        stats.in_flight = self.uncollected().count() as u64 - stats.queued - stats.uncollected;
        let slots = self
            .poisoned
            .iter()
            .filter(|it| matches!(it, Place::Slot(_)));
        stats.poisoned_slots = slots.count() as u64;
        stats.poisoned_blocks = self.poisoned.len() as u64 - stats.poisoned_slots;
        stats
    }
}
