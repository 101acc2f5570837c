//! The jobs of an engine, behind its lock.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::time::Instant;

use super::JobStats;
use super::drive::{self, Started};
use super::result::{JobError, JobId, JobResult, Owner, Place, SubmitError, Transferred};
use crate::transfer::backend::{BackendError, Lane, Progress, TransferBackend};
use crate::transfer::conflict::{Conflicts, Unit, Uses};
use crate::transfer::layout::KvLayout;
use crate::transfer::plan::{Direction, Plan};

const LANES: usize = 3;

/// A job that is to be taken.
pub(super) struct NewJob<B: TransferBackend> {
    pub(super) job: JobId,
    pub(super) lane: Lane,
    pub(super) uses: Uses,
    pub(super) submitted: Instant,
    pub(super) plan: Plan,
    pub(super) fence: B::Fence,
    pub(super) owner: Option<Owner>,
}

/// What a backend is started with.
pub(super) struct Start<B: TransferBackend> {
    pub(super) fence: B::Fence,
    pub(super) plan: Plan,
}

/// A job that is being started, without the lock where that may block.
pub(super) struct Starting<B: TransferBackend> {
    pub(super) lane: Lane,
    pub(super) job: Job,
    pub(super) start: Start<B>,
}

/// What is known of a job beside what its backend knows.
pub(super) struct Job {
    id: JobId,
    direction: Direction,
    bytes: u64,
    uses: Uses,
    submitted: Instant,
    owner: Option<Owner>,
}

/// A job that was started.
struct Running<R> {
    job: Job,
    stage: Stage<R>,
}

enum Stage<R> {
    Runs(R),
    /// It was not started after all.
    Over(BackendError),
}

/// A job that failed, and may still use its memory.
struct Quarantined<R> {
    job: Job,
    error: BackendError,
    running: R,
}

struct LaneState<B: TransferBackend> {
    waiting: VecDeque<(Job, Start<B>)>,
    /// The job that is being started at this moment.
    starting: Option<JobId>,
    running: VecDeque<Running<B::Running>>,
}

impl<B: TransferBackend> Default for LaneState<B> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            starting: None,
            running: VecDeque::new(),
        }
    }
}

/// See the module.
pub(super) struct State<B: TransferBackend> {
    lanes: [LaneState<B>; LANES],
    in_flight_per_lane: usize,
    quarantine: Vec<Quarantined<B::Running>>,
    conflicts: Conflicts,
    ended: VecDeque<JobResult>,
    /// Every job that was not collected, and whether it has ended.
    known: HashMap<JobId, bool>,
    closed: bool,
    stats: JobStats,
}

impl<B: TransferBackend> fmt::Debug for State<B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("State")
            .field("known", &self.known)
            .field("closed", &self.closed)
            .finish_non_exhaustive()
    }
}

impl<B: TransferBackend> State<B> {
    pub(super) fn new(layout: &KvLayout, in_flight_per_lane: usize) -> Self {
        Self {
            lanes: Default::default(),
            in_flight_per_lane,
            quarantine: Vec::new(),
            conflicts: Conflicts::new(layout),
            ended: VecDeque::new(),
            known: HashMap::new(),
            closed: false,
            stats: JobStats::default(),
        }
    }

    /// Whether a job of this id may be taken now.
    pub(super) fn check(&self, job: JobId, capacity: usize) -> Result<(), SubmitError> {
        if self.closed {
            return Err(SubmitError::Closed);
        }
        if self.known.contains_key(&job) {
            return Err(SubmitError::Duplicate(job));
        }
        if self.known.len() >= capacity {
            return Err(SubmitError::Full { capacity });
        }
        Ok(())
    }

    /// Takes what a job uses, or says who has it.
    pub(super) fn take(&mut self, uses: &Uses, layout: &KvLayout) -> Result<(), SubmitError> {
        let Err(taken) = self.conflicts.take(uses) else {
            return Ok(());
        };
        let place = match taken.unit {
            Unit::Slot(slot) => Place::Slot(slot),
            Unit::Block(unit) => {
                let (class, block) = layout.class_of_unit(unit);
                Place::Block { class, block }
            }
        };
        if taken.poisoned {
            return Err(SubmitError::Poisoned(place));
        }
        let with = self.jobs_in_flight().find(|job| job.uses.uses(taken.unit));
        Err(match with {
            Some(job) => SubmitError::Conflict {
                with: job.id,
                place,
            },
            None => SubmitError::Conflict {
                with: self.starting().next().expect("someone uses what is in use"),
                place,
            },
        })
    }

    fn jobs_in_flight(&self) -> impl Iterator<Item = &Job> {
        let in_lanes = self.lanes.iter().flat_map(|lane| {
            let waiting = lane.waiting.iter().map(|(job, _)| job);
            waiting.chain(lane.running.iter().map(|running| &running.job))
        });
        in_lanes.chain(self.quarantine.iter().map(|it| &it.job))
    }

    fn starting(&self) -> impl Iterator<Item = JobId> {
        self.lanes.iter().filter_map(|lane| lane.starting)
    }

    /// Enters a job whose places were taken.
    pub(super) fn push(&mut self, new: NewJob<B>) {
        self.stats.submitted += 1;
        self.known.insert(new.job, false);
        let job = Job {
            id: new.job,
            direction: new.plan.direction(),
            bytes: new.plan.bytes(),
            uses: new.uses,
            submitted: new.submitted,
            owner: new.owner,
        };
        let start = Start {
            fence: new.fence,
            plan: new.plan,
        };
        self.lane(new.lane).waiting.push_back((job, start));
    }

    fn lane(&mut self, lane: Lane) -> &mut LaneState<B> {
        &mut self.lanes[lane as usize]
    }

    /// The next job to start: expedited loads before others, and as many of a lane as may run.
    pub(super) fn next_to_start(&mut self) -> Option<Starting<B>> {
        for lane in [Lane::Expedited, Lane::Load, Lane::Store] {
            let most = self.in_flight_per_lane;
            let state = self.lane(lane);
            if state.starting.is_some() || state.running.len() >= most {
                continue;
            }
            if let Some((job, start)) = state.waiting.pop_front() {
                state.starting = Some(job.id);
                return Some(Starting { lane, job, start });
            }
        }
        None
    }

    /// What came of starting a job that `next_to_start` gave.
    pub(super) fn started(&mut self, lane: Lane, job: Job, started: Started<B::Running>) {
        let state = self.lane(lane);
        state.starting = None;
        match started {
            Started::Running(running) => state.running.push_back(Running {
                job,
                stage: Stage::Runs(running),
            }),
            Started::Not(error) => state.running.push_back(Running {
                job,
                stage: Stage::Over(error),
            }),
            Started::Failed(error, running) => self.quarantine.push(Quarantined {
                job,
                error,
                running,
            }),
            Started::Lost(error) => self.poison(job, error),
        }
    }

    /// Looks for jobs that have ended. Returns whether there were any.
    pub(super) fn reap(&mut self, backend: &B) -> bool {
        let before = self.ended.len();
        for lane in [Lane::Expedited, Lane::Load, Lane::Store] {
            while let Some(first) = self.lane(lane).running.front_mut() {
                let progress = match &mut first.stage {
                    Stage::Runs(running) => drive::poll(backend, running),
                    Stage::Over(_) => Progress::Done,
                };
                if let Progress::Pending = progress {
                    break;
                }
                let first = self.lane(lane).running.pop_front();
                let Running { job, stage } = first.expect("there is a first one");
                match (stage, progress) {
                    (Stage::Over(error), _) => self.end(job, Err(JobError::Backend(error))),
                    (Stage::Runs(running), Progress::Failed(error)) => {
                        self.quarantine.push(Quarantined {
                            job,
                            error,
                            running,
                        });
                    }
                    (Stage::Runs(_), _) => {
                        let copied = Transferred::new(job.bytes, job.submitted.elapsed());
                        self.end(job, Ok(copied));
                    }
                }
            }
        }
        let mut at = 0;
        while let Some(it) = self.quarantine.get_mut(at) {
            let progress = drive::quiesce(backend, &mut it.running);
            if let Progress::Pending = progress {
                at += 1;
                continue;
            }
            let Quarantined {
                job,
                error,
                running,
            } = self.quarantine.remove(at);
            match progress {
                Progress::Failed(_) => {
                    // What the backend knows of it may be in use as well.
                    let _leaked = std::mem::ManuallyDrop::new(running);
                    self.poison(job, error);
                }
                _ => self.end(job, Err(JobError::Backend(error))),
            }
        }
        self.ended.len() > before
    }

    /// A job ended, and nothing uses its memory any more.
    fn end(&mut self, job: Job, outcome: Result<Transferred, JobError>) {
        self.conflicts.give_back(&job.uses);
        match &outcome {
            Ok(copied) => {
                self.stats.succeeded += 1;
                let bytes = match job.direction {
                    Direction::Store => &mut self.stats.bytes_stored,
                    Direction::Load => &mut self.stats.bytes_loaded,
                };
                *bytes += copied.bytes();
            }
            Err(JobError::Cancelled) => self.stats.cancelled += 1,
            Err(_) => self.stats.failed += 1,
        }
        self.known.insert(job.id, true);
        self.ended.push_back(JobResult {
            job: job.id,
            direction: job.direction,
            outcome,
            owner: job.owner,
        });
    }

    /// A job failed, and its memory may be in use for ever.
    fn poison(&mut self, mut job: Job, error: BackendError) {
        let (slots, blocks) = self.conflicts.poison(&job.uses);
        self.stats.poisoned_slots += slots;
        self.stats.poisoned_blocks += blocks;
        let _leaked = std::mem::ManuallyDrop::new(job.owner.take());
        self.end(job, Err(JobError::Quarantined(error)));
    }

    /// Takes the results that nobody has collected.
    pub(super) fn collect(&mut self) -> Vec<JobResult> {
        for result in &self.ended {
            self.known.remove(&result.job);
        }
        self.ended.drain(..).collect()
    }

    pub(super) fn cancel(&mut self, job: JobId) -> bool {
        for lane in 0..LANES {
            let waiting = &mut self.lanes[lane].waiting;
            let at = waiting.iter().position(|(it, _)| it.id == job);
            if let Some((job, _)) = at.and_then(|at| waiting.remove(at)) {
                self.end(job, Err(JobError::Cancelled));
                return true;
            }
        }
        false
    }

    /// Takes no more jobs, and withdraws those that wait.
    pub(super) fn close(&mut self) {
        self.closed = true;
        for lane in 0..LANES {
            while let Some((job, _)) = self.lanes[lane].waiting.pop_front() {
                self.end(job, Err(JobError::Cancelled));
            }
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether the job was taken and has not ended.
    pub(super) fn is_under_way(&self, job: JobId) -> bool {
        self.known.get(&job) == Some(&false)
    }

    /// Whether every job has ended.
    pub(super) fn is_idle(&self) -> bool {
        self.ended.len() == self.known.len()
    }

    pub(super) fn is_free(&self, unit: Unit) -> bool {
        self.conflicts.is_free(unit)
    }

    pub(super) fn stats(&self) -> JobStats {
        let queued = self
            .lanes
            .iter()
            .map(|lane| lane.waiting.len() as u64)
            .sum();
        let uncollected = self.ended.len() as u64;
        JobStats {
            queued,
            uncollected,
            in_flight: self.known.len() as u64 - uncollected - queued,
            quarantined: self.quarantine.len() as u64,
            ..self.stats
        }
    }
}
