//! The jobs of an engine, behind its lock.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::mem::ManuallyDrop;
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
    /// How many were taken before it.
    number: u64,
    direction: Direction,
    bytes: u64,
    uses: Uses,
    submitted: Instant,
    owner: Option<Owner>,
}

/// A job whose turn in its lane has not come, since it was started.
struct Running<R> {
    job: Job,
    stage: Stage<R>,
}

enum Stage<R> {
    Runs(R),
    /// It was not started after all.
    Over(BackendError),
    /// Some of it may run.
    Failed(BackendError, R),
    /// Some of it may run, and nobody can tell.
    Lost(BackendError),
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
    /// Whether anything is never to be used again.
    poisoned: bool,
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
            poisoned: false,
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
        self.known.insert(new.job, false);
        let job = Job {
            id: new.job,
            number: self.stats.submitted,
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
        self.stats.submitted += 1;
        self.lane(new.lane).waiting.push_back((job, start));
    }

    fn lane(&mut self, lane: Lane) -> &mut LaneState<B> {
        &mut self.lanes[lane as usize]
    }

    /// The next job to start, of the lanes where one more may run: an expedited load, else the one
    /// that was taken first, so that neither direction starves the other.
    pub(super) fn next_to_start(&mut self) -> Option<Starting<B>> {
        let number = |state: &Self, lane: Lane| {
            let most = state.in_flight_per_lane;
            let state = &state.lanes[lane as usize];
            let first = state.waiting.front().map(|(job, _)| job.number);
            first.filter(|_| state.starting.is_none() && state.running.len() < most)
        };
        let lane = if number(self, Lane::Expedited).is_some() {
            Lane::Expedited
        } else {
            let ordinary = [Lane::Load, Lane::Store];
            let ready = ordinary.map(|lane| number(self, lane).map(|number| (number, lane)));
            ready.into_iter().flatten().min_by_key(|it| it.0)?.1
        };
        let state = self.lane(lane);
        let (job, start) = state.waiting.pop_front().expect("it has a first one");
        state.starting = Some(job.id);
        Some(Starting { lane, job, start })
    }

    /// What came of starting a job that `next_to_start` gave.
    pub(super) fn started(&mut self, lane: Lane, job: Job, started: Started<B::Running>) {
        let stage = match started {
            Started::Running(running) => Stage::Runs(running),
            Started::Not(error) => Stage::Over(error),
            Started::Failed(error, running) => Stage::Failed(error, running),
            Started::Lost(error) => Stage::Lost(error),
        };
        let state = self.lane(lane);
        state.starting = None;
        state.running.push_back(Running { job, stage });
    }

    /// Looks for jobs that have ended.
    pub(super) fn reap(&mut self, backend: &B) {
        for failed in std::mem::take(&mut self.quarantine) {
            self.quiesce(backend, failed);
        }
        for lane in [Lane::Expedited, Lane::Load, Lane::Store] {
            while let Some(first) = self.lane(lane).running.front_mut() {
                let progress = match &mut first.stage {
                    Stage::Runs(running) => drive::poll(backend, running),
                    Stage::Over(_) | Stage::Failed(..) | Stage::Lost(_) => Progress::Done,
                };
                if let Progress::Pending = progress {
                    break;
                }
                let first = self.lane(lane).running.pop_front();
                let Running { job, stage } = first.expect("there is a first one");
                match (stage, progress) {
                    (Stage::Over(error), _) => self.end(job, Err(JobError::Backend(error))),
                    (Stage::Lost(error), _) => self.poison(job, error),
                    (Stage::Failed(error, running), _)
                    | (Stage::Runs(running), Progress::Failed(error)) => {
                        let failed = Quarantined {
                            job,
                            error,
                            running,
                        };
                        self.quiesce(backend, failed);
                    }
                    (Stage::Runs(running), _) => {
                        let copied = Transferred::new(job.bytes, job.submitted.elapsed());
                        self.end(job, Ok(copied));
                        drive::discard(running);
                    }
                }
            }
        }
    }

    /// Ends a job that failed, or has it stand aside while it may still use its memory.
    fn quiesce(&mut self, backend: &B, mut failed: Quarantined<B::Running>) {
        match drive::quiesce(backend, &mut failed.running) {
            Progress::Pending => self.quarantine.push(failed),
            Progress::Done => {
                self.end(failed.job, Err(JobError::Backend(failed.error)));
                drive::discard(failed.running);
            }
            Progress::Failed(_) => {
                // What the backend knows of it may be in use as well.
                let _leaked = ManuallyDrop::new(failed.running);
                self.poison(failed.job, failed.error);
            }
        }
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
        self.poisoned = true;
        let (slots, blocks) = self.conflicts.poison(&job.uses);
        self.stats.poisoned_slots += slots;
        self.stats.poisoned_blocks += blocks;
        let _leaked = ManuallyDrop::new(job.owner.take());
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
            if let Some((job, start)) = at.and_then(|at| waiting.remove(at)) {
                self.end(job, Err(JobError::Cancelled));
                drive::discard(start);
                return true;
            }
        }
        false
    }

    /// Takes no more jobs, and withdraws those that wait.
    pub(super) fn close(&mut self) {
        self.closed = true;
        for lane in 0..LANES {
            while let Some((job, start)) = self.lanes[lane].waiting.pop_front() {
                self.end(job, Err(JobError::Cancelled));
                drive::discard(start);
            }
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn is_poisoned(&self) -> bool {
        self.poisoned
    }

    /// How many jobs have ended so far.
    pub(super) fn ends(&self) -> u64 {
        self.stats.succeeded + self.stats.failed + self.stats.cancelled
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
