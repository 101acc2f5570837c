//! Transfers: which bytes a job copies, and the life of a job from its submit to its result. No
//! byte moves here.
//!
//! A *job* copies chunks between blocks of an accelerator and slots of the host tier, in one
//! direction. [`KvLayout`] says where blocks and slots lie, and turns a [`Transfer`] into a [`Plan`]
//! of byte ranges. A [`TransferBackend`] moves the bytes of a plan. [`JobEngine`] takes jobs, keeps
//! their order, and gives each exactly one [`JobResult`].
//!
//! 1. A plan touches no byte outside of the tensors and the slots of its layout.
//! 2. Two jobs in flight never conflict: none writes what another reads or writes.
//! 3. A job ends once, in success or in a typed error, and its memory belongs to it until then.

mod backend;
mod conflict;
mod job;
mod layout;
mod plan;
mod waker;

pub use backend::{BackendError, EnqueueError, Lane, Progress, TransferBackend};
pub use job::{
    JobEngine, JobError, JobId, JobOptions, JobResult, JobStats, Owner, Place, Priority,
    SubmitError, Transferred,
};
pub use layout::{DeviceTensor, GroupTensor, HostPart, HostSlots, KvLayout, LayoutError, LayoutId};
pub use plan::{CopyRange, Direction, Plan, PlanError, Transfer};
pub use waker::Waker;
