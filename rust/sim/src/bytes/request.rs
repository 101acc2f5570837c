//! The requests in flight, from their first look-up to their end.

use std::collections::VecDeque;

use kvferry::transfer::{Direction, JobId, JobResult};
use kvferry::{Keys, LoadTicket, Manager, RequestAccess, StoreOutcome, StoreTicket};

use crate::replay::{KEY_BYTES, ReplayError, refused, write_keys};
use crate::trace::ChunkId;

use super::tier::{Blocks, Tier};
use super::{MoveOptions, Moved};

/// One request.
#[derive(Debug)]
struct Request {
    chain: Vec<ChunkId>,
    keys: Vec<u8>,
    /// Of each chunk of the chain.
    blocks: Vec<Blocks>,
    access: RequestAccess,
    output_tokens: u64,
}

/// A request that waits for its job.
#[derive(Debug)]
struct Waiting {
    request: Request,
    job: JobId,
    stage: Stage,
}

/// What a request's job does.
#[derive(Debug)]
enum Stage {
    Loading(LoadTicket),
    Storing(StoreTicket),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Requests {
    manager: Manager,
    tier: Tier,
    in_flight: VecDeque<Waiting>,
    most_in_flight: usize,
    most_chunks: usize,
    hit_chunks: u64,
    moved: Moved,
    chain: Vec<ChunkId>,
}

impl Requests {
    pub(super) fn new(manager: Manager, tier: Tier, options: &MoveOptions) -> Self {
        Self {
            most_chunks: manager.capacity().min(tier.free_chunks()),
            manager,
            in_flight: VecDeque::new(),
            most_in_flight: options.in_flight.get(),
            hit_chunks: 0,
            moved: Moved {
                chunk_bytes: tier.chunk_bytes(),
                bytes_stored: 0,
                bytes_loaded: 0,
                bytes_verified: 0,
                failed_stores: 0,
                failed_loads: 0,
                declined_stores: 0,
                gb_per_second: 0.0,
            },
            tier,
            chain: Vec::new(),
        }
    }

    /// Where the chunks of the next request go.
    pub(super) fn chain(&mut self) -> &mut Vec<ChunkId> {
        &mut self.chain
    }

    /// Begins the request whose chunks are in the chain; others go on meanwhile.
    pub(super) fn serve(&mut self, now_us: u64, output_tokens: u64) -> Result<(), ReplayError> {
        let mut chain = std::mem::take(&mut self.chain);
        chain.truncate(self.most_chunks);
        while self.in_flight.len() >= self.most_in_flight || self.tier.free_chunks() < chain.len() {
            self.wait_for_oldest()?;
        }
        self.collect()?;
        let mut keys = Vec::new();
        write_keys(&chain, &mut keys);
        let ready = self.ready_prefix(&keys)?;
        let mut request = Request {
            blocks: self.tier.take(chain.len()),
            access: self.manager.begin_request(now_us, 0),
            chain,
            keys,
            output_tokens,
        };
        if ready == 0 {
            return self.compute(0, request);
        }
        let leading = Keys::rows(&request.keys[..ready * KEY_BYTES], KEY_BYTES).map_err(refused)?;
        let load = self
            .manager
            .prepare_load(leading, Some(&mut request.access));
        let ticket = load.map_err(refused)?;
        let blocks = request.blocks[..ready].iter();
        let job = self.tier.submit(Direction::Load, blocks, ticket.slots())?;
        self.in_flight.push_back(Waiting {
            request,
            job,
            stage: Stage::Loading(ticket),
        });
        Ok(())
    }

    /// The longest leading run of ready chunks, once no store in flight could make it longer.
    fn ready_prefix(&mut self, keys: &[u8]) -> Result<usize, ReplayError> {
        let keys = Keys::rows(keys, KEY_BYTES).map_err(refused)?;
        loop {
            let hits = self.manager.lookup_prefix(keys).map_err(refused)?;
            if hits.known == hits.ready || self.in_flight.is_empty() {
                return Ok(hits.ready);
            }
            self.wait_for_oldest()?;
        }
    }

    fn wait_for_oldest(&mut self) -> Result<(), ReplayError> {
        if let Some(oldest) = self.in_flight.front() {
            self.tier.wait(oldest.job);
        }
        self.collect()
    }

    /// Takes note of every job that has ended.
    fn collect(&mut self) -> Result<(), ReplayError> {
        for result in self.tier.poll_finished() {
            let at = self.in_flight.iter().position(|it| it.job == result.job);
            let waiting = at.and_then(|at| self.in_flight.remove(at));
            let waiting = waiting.expect("every job belongs to a request in flight");
            self.ended(waiting, &result)?;
        }
        Ok(())
    }

    fn ended(&mut self, waiting: Waiting, result: &JobResult) -> Result<(), ReplayError> {
        let Waiting { request, stage, .. } = waiting;
        let bytes = result.outcome.as_ref().ok().map(|copied| copied.bytes());
        match stage {
            Stage::Loading(ticket) => {
                let chunks = ticket.slots().len();
                self.manager.complete_load(ticket);
                let Some(bytes) = bytes else {
                    self.moved.failed_loads += 1;
                    return self.compute(0, request);
                };
                self.moved.bytes_loaded += bytes;
                for (&chunk, blocks) in request.chain.iter().zip(&request.blocks).take(chunks) {
                    self.tier.compare(chunk, blocks)?;
                    self.moved.bytes_verified += self.tier.chunk_bytes();
                }
                self.hit_chunks += chunks as u64;
                self.compute(chunks, request)
            }
            Stage::Storing(ticket) => {
                match bytes {
                    Some(bytes) => self.moved.bytes_stored += bytes,
                    None => self.moved.failed_stores += 1,
                }
                self.manager.complete_store(ticket, bytes.is_some());
                self.end(request)
            }
        }
    }

    /// Computes the chunks from `from` on, and stores what the tier lacks.
    fn compute(&mut self, from: usize, mut request: Request) -> Result<(), ReplayError> {
        for (&chunk, blocks) in request.chain.iter().zip(&request.blocks).skip(from) {
            self.tier.fill(chunk, blocks)?;
        }
        let keys = Keys::rows(&request.keys, KEY_BYTES).map_err(refused)?;
        let store = self.manager.prepare_store(keys, Some(&mut request.access));
        let output = match store.map_err(refused)? {
            StoreOutcome::Stored(output) if !output.indices.is_empty() => output,
            StoreOutcome::Stored(output) => {
                self.manager.complete_store(output.ticket, true);
                return self.end(request);
            }
            StoreOutcome::Rejected(_) => {
                self.moved.declined_stores += 1;
                return self.end(request);
            }
        };
        let blocks = output.indices.iter().map(|&index| &request.blocks[index]);
        let slots = output.ticket.slots();
        let job = self.tier.submit(Direction::Store, blocks, slots)?;
        self.in_flight.push_back(Waiting {
            request,
            job,
            stage: Stage::Storing(output.ticket),
        });
        Ok(())
    }

    fn end(&mut self, request: Request) -> Result<(), ReplayError> {
        self.tier.give_back(request.blocks);
        let finished = self
            .manager
            .finish_request(request.access, Some(request.output_tokens));
        finished.map_err(refused)
    }

    /// Lets every request end.
    pub(super) fn finish(mut self) -> Result<(Manager, u64, Moved), ReplayError> {
        while !self.in_flight.is_empty() {
            self.wait_for_oldest()?;
        }
        Ok((self.manager, self.hit_chunks, self.moved))
    }
}
