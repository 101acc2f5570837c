//! The two pools of a replay, and what they hold.

use kvferry::transfer::{Direction, JobId, JobOptions, JobResult, Priority, Transfer};
use kvferry_host::{FaultInjection, HostOptions, LocalShape, LocalTier};

use crate::replay::ReplayError;
use crate::trace::ChunkId;

use super::MoveOptions;
use super::content::Page;

/// Tensors of the accelerator's pool: K and V of two layers.
pub(super) const TENSORS: usize = 4;

/// Blocks of a chunk.
pub(super) const BLOCKS_PER_CHUNK: usize = 2;

/// Blocks of one chunk on the accelerator.
pub(super) type Blocks = [i64; BLOCKS_PER_CHUNK];

/// See the module.
#[derive(Debug)]
pub(super) struct Tier {
    local: LocalTier,
    next_job: u64,
    free: Vec<Blocks>,
    chunk_bytes: u64,
}

impl Tier {
    pub(super) fn new(options: &MoveOptions, slots: usize) -> Result<Self, ReplayError> {
        let chunk_bytes = options.chunk_bytes;
        if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(MoveOptions::GRANULE) {
            return Err(ReplayError::Option {
                option: "chunk_bytes",
                what: "not a positive multiple of 64",
            });
        }
        if !(0.0..=1.0).contains(&options.fault_rate) {
            return Err(ReplayError::Option {
                option: "fault_rate",
                what: "not within 0 and 1",
            });
        }
        if options.device_chunks == 0 {
            return Err(ReplayError::Option {
                option: "device_chunks",
                what: "no chunk fits",
            });
        }
        let page_bytes = chunk_bytes / (TENSORS * BLOCKS_PER_CHUNK) as u64;
        let blocks = options.device_chunks * BLOCKS_PER_CHUNK;
        let shape = LocalShape {
            blocks: blocks as u64,
            page_bytes: vec![page_bytes; TENSORS],
            blocks_per_chunk: u32::try_from(BLOCKS_PER_CHUNK).expect("a small number"),
            slots: slots as u64,
        };
        let mut host = HostOptions {
            threads: options.threads,
            ..HostOptions::default()
        };
        if options.fault_rate > 0.0 {
            host.faults = Some(FaultInjection {
                rate: options.fault_rate,
                seed: options.fault_seed,
                only: None,
            });
        }
        let mut jobs = JobOptions::default();
        jobs.capacity = options.in_flight.get();
        let local = LocalTier::new(shape, host, jobs)
            .map_err(|error| ReplayError::Pools(Box::new(error)))?;
        // Handed out from the end, in an order that leaves no two chunks of a request side by side.
        let free = (0..options.device_chunks as i64)
            .map(|chunk| [0, 1].map(|block| chunk * BLOCKS_PER_CHUNK as i64 + block))
            .collect();
        Ok(Self {
            local,
            next_job: 0,
            free,
            chunk_bytes,
        })
    }

    pub(super) fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    pub(super) fn free_chunks(&self) -> usize {
        self.free.len()
    }

    /// Blocks for `n` chunks, no more than are free.
    pub(super) fn take(&mut self, n: usize) -> Vec<Blocks> {
        self.free.split_off(self.free.len() - n)
    }

    pub(super) fn give_back(&mut self, blocks: Vec<Blocks>) {
        self.free.extend(blocks);
    }

    /// Computes a chunk: fills its blocks.
    pub(super) fn fill(&mut self, chunk: ChunkId, blocks: &Blocks) -> Result<(), ReplayError> {
        let chunk = chunk.get();
        for tensor in 0..TENSORS {
            for (block, &id) in blocks.iter().enumerate() {
                let bytes = self.local.page_mut(tensor, id).map_err(failed)?;
                Page {
                    chunk,
                    tensor,
                    block,
                }
                .fill(bytes);
            }
        }
        Ok(())
    }

    /// Compares every byte of a chunk on the accelerator.
    pub(super) fn compare(&mut self, chunk: ChunkId, blocks: &Blocks) -> Result<(), ReplayError> {
        let chunk = chunk.get();
        for tensor in 0..TENSORS {
            for (block, &id) in blocks.iter().enumerate() {
                let bytes = self.local.page_mut(tensor, id).map_err(failed)?;
                Page {
                    chunk,
                    tensor,
                    block,
                }
                .compare(bytes)
                .map_err(|difference| ReplayError::WrongByte {
                    chunk,
                    tensor,
                    block,
                    offset: difference.offset,
                    expected: difference.expected,
                    found: difference.found,
                })?;
            }
        }
        Ok(())
    }

    /// Submits a job over whole chunks: `blocks[i]` belongs to `slots[i]`.
    pub(super) fn submit<'a>(
        &mut self,
        direction: Direction,
        blocks: impl Iterator<Item = &'a Blocks>,
        slots: &[u32],
    ) -> Result<JobId, ReplayError> {
        let job = JobId(self.next_job);
        self.next_job += 1;
        let block_ids: Vec<i64> = blocks.flatten().copied().collect();
        let slots: Vec<i64> = slots.iter().copied().map(i64::from).collect();
        let transfer = Transfer {
            direction,
            block_ids: &block_ids,
            group_sizes: &[block_ids.len()],
            block_indices: &[0],
            slots: &slots,
        };
        let submitted = self.local.submit(job, &transfer, Priority::Ordinary);
        submitted.map_err(failed)?;
        Ok(job)
    }

    pub(super) fn poll_finished(&mut self) -> Vec<JobResult> {
        self.local.jobs().poll_finished()
    }

    /// Waits until the job has ended.
    pub(super) fn wait(&self, job: JobId) {
        self.local.jobs().wait(&[job], None);
    }

    #[cfg(test)]
    pub(super) fn local(&mut self) -> &mut LocalTier {
        &mut self.local
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> ReplayError {
    ReplayError::Transfer(Box::new(error))
}
