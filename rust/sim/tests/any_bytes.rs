//! Whatever the bytes of a file are, reading ends in a trace that keeps its promises or in an
//! error.

use kvferry_sim::{ReadOptions, Trace, TraceError, read_trace_from, unobserved};
use proptest::prelude::*;

const MOONCAKE: &str = r#"{"timestamp": 0, "input_length": 1500, "output_length": 52, "hash_ids": [46, 47, 48]}
{"timestamp": 3000, "input_length": 1024, "output_length": 7, "hash_ids": [46, 47]}
{"timestamp": 3000.5, "input_length": 1600, "output_length": 1, "hash_ids": [46, 99, 100, 101]}
"#;

const KVTRACE: &str = r#"{"format":"kvtrace-1","name":"small","block_size":64,"requests":4,"unique_blocks":7}
{"t":10,"in":300,"out":5,"s":3,"f":0,"p":[0,0],"n":[[0,4]]}
{"t":10,"in":200,"out":6,"s":4,"f":1,"p":[1,2],"n":[[4,1]]}
{"t":20,"in":63,"out":7,"s":3,"f":2,"p":[0,0],"n":[]}
{"t":30,"in":390,"out":8,"s":3,"f":0,"p":[3,4],"n":[[5,2]]}
"#;

/// Numbers and fragments that break careless readers.
const FRAGMENTS: [&str; 20] = [
    "0",
    "-1",
    "1",
    "65",
    "16777217",
    "4294967296",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e308",
    "1e999",
    "0.5",
    "null",
    "\"x\"",
    "[]",
    "{}",
    "\n",
    ",",
    "\u{feff}",
    "\0",
];

#[derive(Debug, Clone)]
enum Edit {
    Byte {
        at: prop::sample::Index,
        to: u8,
    },
    Cut {
        at: prop::sample::Index,
        len: usize,
    },
    Repeat {
        at: prop::sample::Index,
        len: usize,
    },
    /// Replaces the n-th run of digits.
    Number {
        at: prop::sample::Index,
        by: &'static str,
    },
    Insert {
        at: prop::sample::Index,
        what: &'static str,
    },
}

impl Edit {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match *self {
            Self::Byte { at, to } if !bytes.is_empty() => *at.get_mut(bytes) = to,
            Self::Cut { at, len } => {
                let start = at.index(bytes.len() + 1);
                bytes.drain(start..(start + len).min(bytes.len()));
            }
            Self::Repeat { at, len } => {
                let start = at.index(bytes.len() + 1);
                let piece = bytes[start..(start + len).min(bytes.len())].to_vec();
                bytes.splice(start..start, piece);
            }
            Self::Number { at, by } => {
                let starts: Vec<usize> = (0..bytes.len())
                    .filter(|&i| {
                        bytes[i].is_ascii_digit() && (i == 0 || !bytes[i - 1].is_ascii_digit())
                    })
                    .collect();
                if !starts.is_empty() {
                    let start = *at.get(&starts);
                    let len = bytes[start..]
                        .iter()
                        .take_while(|b| b.is_ascii_digit())
                        .count();
                    bytes.splice(start..start + len, by.bytes());
                }
            }
            Self::Insert { at, what } => {
                let start = at.index(bytes.len() + 1);
                bytes.splice(start..start, what.bytes());
            }
            Self::Byte { .. } => {}
        }
    }
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = any::<prop::sample::Index>;
    let fragment = || prop::sample::select(&FRAGMENTS[..]);
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, to)| Edit::Byte { at, to }),
        (at(), 1..40_usize).prop_map(|(at, len)| Edit::Cut { at, len }),
        (at(), 1..120_usize).prop_map(|(at, len)| Edit::Repeat { at, len }),
        (at(), fragment()).prop_map(|(at, by)| Edit::Number { at, by }),
        (at(), fragment()).prop_map(|(at, what)| Edit::Insert { at, what }),
    ]
}

/// Fails the test if the outcome breaks a promise; answers whether it is a trace.
fn check(bytes: &[u8]) -> Result<bool, TestCaseError> {
    let outcome = read_trace_from(bytes, "t", &ReadOptions::default(), &mut unobserved);
    let trace = match outcome {
        Ok(trace) => trace,
        Err(TraceError::Line { line, fault, .. }) => {
            let text_lines = bytes.iter().filter(|&&b| b == b'\n').count() as u64 + 1;
            let zstd = bytes.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
            prop_assert!(line >= 1 && (zstd || line <= text_lines), "line {line}");
            prop_assert!(!fault.to_string().contains('\n'));
            return Ok(false);
        }
        Err(TraceError::Empty { .. }) => return Ok(false),
        Err(other) => return Err(TestCaseError::fail(other.to_string())),
    };
    keeps_its_promises(&trace)?;
    for factor in [1, 2, 7] {
        if let Ok(coarse) = trace.coarsen(u64::from(trace.chunk_tokens()) * factor) {
            keeps_its_promises(&coarse)?;
        }
    }
    Ok(true)
}

fn keeps_its_promises(trace: &Trace) -> Result<(), TestCaseError> {
    prop_assert!(!trace.requests().is_empty() && trace.chunk_tokens() > 0);
    prop_assert!(trace.requests().is_sorted_by_key(|r| r.time_us));
    let mut chain = Vec::new();
    for request in trace.requests() {
        trace.chain(request, &mut chain);
        prop_assert_eq!(chain.len(), request.chunks as usize);
        prop_assert!(
            chain
                .iter()
                .all(|c| u64::from(c.get()) < trace.unique_chunks())
        );
        prop_assert!(
            u64::from(request.chunks) * u64::from(trace.chunk_tokens()) <= request.input_tokens
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn edited_files_are_read_or_refused(
        text in prop::sample::select(&[MOONCAKE, KVTRACE][..]),
        edits in prop::collection::vec(edit(), 0..4),
    ) {
        let mut bytes = text.as_bytes().to_vec();
        edits.iter().for_each(|edit| edit.apply(&mut bytes));
        let read = check(&bytes)?;
        prop_assert!(read || !edits.is_empty(), "the files without edits are good");
        let packed = zstd::encode_all(&bytes[..], 1).expect("compresses in memory");
        prop_assert_eq!(check(&packed)?, read);
    }

    #[test]
    fn edited_zstd_streams_are_read_or_refused(
        text in prop::sample::select(&[MOONCAKE, KVTRACE][..]),
        edits in prop::collection::vec(edit(), 1..4),
    ) {
        let mut bytes = zstd::encode_all(text.as_bytes(), 1).expect("compresses in memory");
        edits.iter().for_each(|edit| edit.apply(&mut bytes));
        check(&bytes)?;
    }

    #[test]
    fn arbitrary_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        check(&bytes)?;
    }
}
