//! A small scheduler over the engine: requests that share prefixes, a host tier that is too small for
//! all of them, and a reader on a thread of its own that pins chunks while they come and go.
//!
//! Run it with `cargo run --release -p kvferry --example scheduler`.

use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use kvferry::{Config, Keys, Manager, PolicyKind, Reader, TryPin, Unpinned};

const CHUNKS: usize = 256;
const CONVERSATIONS: u64 = 40;
const TURNS: u64 = 12;
const CHUNKS_PER_TURN: u64 = 3;

/// What the host tier holds in one slot. A real worker keeps kilobytes of KV there; here it is one number
/// that only the right chunk has.
type Slot = AtomicU64;

/// The key of one chunk: 32 bytes that stand for the engine's block hash, and the KV-cache group.
fn key(conversation: u64, chunk: u64) -> [u8; 36] {
    let mut key = [0; 36];
    key[..8].copy_from_slice(&conversation.to_be_bytes());
    key[8..16].copy_from_slice(&chunk.to_be_bytes());
    key
}

/// What the model computes for that chunk.
fn kv(conversation: u64, chunk: u64) -> u64 {
    conversation << 32 | chunk
}

/// The chunks of one prompt, head first, one after the other.
fn prompt(conversation: u64, chunks: u64) -> Vec<u8> {
    (0..chunks)
        .flat_map(|chunk| key(conversation, chunk))
        .collect()
}

/// One request, as a scheduler sees it. Returns how many chunks it did not have to compute.
fn serve(
    manager: &mut Manager,
    host: &[Slot],
    (conversation, turn): (u64, u64),
    now_us: u64,
) -> Result<usize, Box<dyn Error>> {
    let bytes = prompt(conversation, (turn + 1) * CHUNKS_PER_TURN);
    let keys = Keys::rows(&bytes, 36)?;
    let mut access = manager.begin_request(now_us, 0);

    // What is there already? A lookup pins nothing; the load does, all of it or none.
    let hits = manager.lookup_prefix(keys)?.ready;
    let loaded = Keys::rows(&bytes[..hits * 36], 36)?;
    let load = manager.prepare_load(loaded, Some(&mut access))?;
    for (chunk, slot) in load.slots().iter().enumerate() {
        // The transfer to the accelerator. No other chunk can be in this slot before `complete_load`.
        let found = host[*slot as usize].load(Ordering::Relaxed);
        assert_eq!(
            found,
            kv(conversation, chunk as u64),
            "a slot holds the chunk of its key"
        );
    }
    manager.complete_load(load);

    // The rest is computed and offered. Whatever leaves for it is chosen here; a tier that is full of
    // chunks in use answers that it does not fit, and the request goes on without it.
    if let Some(output) = manager.prepare_store(keys, Some(&mut access))?.stored() {
        for (index, slot) in output.indices.iter().zip(output.ticket.slots()) {
            // The transfer from the accelerator. Nobody reads this slot before `complete_store`.
            host[*slot as usize].store(kv(conversation, *index as u64), Ordering::Relaxed);
        }
        manager.complete_store(output.ticket, true);
    }

    // One request is one access, however many calls it took.
    manager.finish_request(access, Some(100))?;
    Ok(hits)
}

/// Reads chunks while the scheduler works: a pin holds a chunk in its slot until it is given back.
fn read_along(reader: &Reader, host: &[Slot], done: &AtomicBool) -> Result<u64, Box<dyn Error>> {
    let mut read = 0;
    loop {
        let last = done.load(Ordering::Acquire);
        for conversation in 0..CONVERSATIONS {
            for chunk in 0..TURNS * CHUNKS_PER_TURN {
                if let TryPin::Pinned(pin) = reader.try_pin(&key(conversation, chunk))? {
                    let found = host[pin.slot() as usize].load(Ordering::Relaxed);
                    assert_eq!(
                        found,
                        kv(conversation, chunk),
                        "a pinned slot keeps its chunk"
                    );
                    assert_eq!(reader.unpin(pin), Unpinned::Released);
                    read += 1;
                }
            }
        }
        if last {
            return Ok(read);
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut manager = Manager::new(Config::new(CHUNKS).policy(PolicyKind::Arc))?;
    let host: Vec<Slot> = (0..CHUNKS).map(|_| Slot::new(0)).collect();
    let done = AtomicBool::new(false);
    let reader = manager.reader();

    let (hits, read) = thread::scope(|scope| {
        let reading = scope.spawn(|| read_along(&reader, &host, &done).map_err(|e| e.to_string()));
        let mut hits = 0;
        for turn in 0..TURNS {
            for conversation in 0..CONVERSATIONS {
                // Some conversations come back at each turn, others are rare.
                if conversation % (turn % 4 + 1) == 0 {
                    let now_us = (turn * CONVERSATIONS + conversation) * 1000;
                    hits += serve(&mut manager, &host, (conversation, turn), now_us)?;
                }
            }
        }
        done.store(true, Ordering::Release);
        let read = reading.join().map_err(|_| "the reader panicked")??;
        Ok::<_, Box<dyn Error>>((hits, read))
    })?;

    let stats = manager.stats();
    assert!(
        hits > 0 && stats.evicted > 0 && read > 0,
        "the example shows reuse, eviction and a reader"
    );
    assert_eq!(
        (stats.pinned, stats.pending),
        (0, 0),
        "nothing is held when nothing runs"
    );
    let mut out = std::io::stdout().lock();
    use std::io::Write;
    writeln!(
        out,
        "{} after {hits} chunks loaded, {} stored, {} evicted; a reader pinned {read}",
        stats, stats.stored, stats.evicted
    )?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    run()
}

#[test]
fn the_scheduler_reuses_evicts_and_is_read_along() -> Result<(), Box<dyn Error>> {
    run()
}
