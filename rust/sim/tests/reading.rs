//! What the readers make of trace files, good and bad.

use std::fs;
use std::io::{self, Read, Write};
use std::num::NonZeroU32;
use std::ops::ControlFlow;
use std::path::Path;

use kvferry_sim::{
    ChunkSizeError, Fault, MAX_BLOCKS_PER_REQUEST, MAX_LINE_BYTES, Progress, ReadOptions, Trace,
    TraceError, read_trace, read_trace_from, unobserved,
};

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

fn read(text: impl AsRef<[u8]>) -> Result<Trace, TraceError> {
    read_trace_from(
        text.as_ref(),
        "t.jsonl",
        &ReadOptions::default(),
        &mut unobserved,
    )
}

/// The line and the fault of a text that must be refused, and the whole message.
fn refused(text: impl AsRef<[u8]>) -> (u64, Fault, String) {
    match read(text) {
        Err(error @ TraceError::Line { .. }) => {
            let message = error.to_string();
            let TraceError::Line { line, fault, .. } = error else {
                unreachable!("matched above")
            };
            assert!(
                message.starts_with(&format!("t.jsonl:{line}: ")),
                "{message}"
            );
            (line, fault, message)
        }
        other => panic!("expected a faulty line, got {other:?}"),
    }
}

fn chains(trace: &Trace) -> Vec<Vec<u32>> {
    let mut chain = Vec::new();
    let requests = trace.requests().iter();
    requests
        .map(|request| {
            trace.chain(request, &mut chain);
            assert_eq!(chain.len(), request.chunks as usize);
            chain.iter().map(|c| c.get()).collect()
        })
        .collect()
}

fn zstd(text: &str) -> Vec<u8> {
    zstd::encode_all(text.as_bytes(), 3).expect("compresses in memory")
}

#[test]
fn mooncake_lists_lose_their_partial_block_and_keep_times_in_microseconds() {
    let trace = read(MOONCAKE).expect("is well formed");
    assert_eq!(trace.chunk_tokens(), 512);
    assert_eq!(chains(&trace), [vec![0, 1], vec![0, 1], vec![0, 2, 3]]);
    let times: Vec<_> = trace.requests().iter().map(|r| r.time_us).collect();
    assert_eq!(times, [0, 3_000_000, 3_000_500]);
    assert_eq!(trace.requests()[0].output_tokens, 52);
    assert_eq!((trace.unique_chunks(), trace.chunk_refs()), (4, 7));
}

#[test]
fn kvtrace_prefixes_and_runs_give_the_chains() {
    let trace = read(KVTRACE).expect("is well formed");
    assert_eq!(trace.chunk_tokens(), 64);
    let expected = [
        vec![0, 1, 2, 3],
        vec![0, 1, 4],
        vec![],
        vec![0, 1, 2, 3, 5, 6],
    ];
    assert_eq!(chains(&trace), expected);
    let sessions: Vec<_> = trace.requests().iter().map(|r| r.session).collect();
    assert_eq!(sessions, [3, 4, 3, 3]);
    assert_eq!(trace.requests()[3].input_tokens, 390);
}

#[test]
fn both_formats_are_recognised_by_content_compressed_or_not() {
    for text in [MOONCAKE, KVTRACE] {
        let plain = read(text).expect("is well formed");
        assert_eq!(read(zstd(text)).expect("is well formed"), plain);
        let mut framed = vec![0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 9, 9];
        framed.extend(zstd(text));
        assert_eq!(read(framed).expect("is well formed"), plain);
    }
}

#[test]
fn the_block_of_a_mooncake_trace_can_be_set() {
    let options = ReadOptions {
        mooncake_block_tokens: NonZeroU32::new(16).expect("not zero"),
    };
    let line = r#"{"timestamp":1,"input_length":40,"output_length":1,"hash_ids":[5,6,7]}"#;
    let trace = read_trace_from(line.as_bytes(), "t", &options, &mut unobserved).expect("reads");
    assert_eq!(
        (trace.chunk_tokens(), chains(&trace)),
        (16, vec![vec![0, 1]])
    );
    let (_, _, message) = refused(line);
    assert!(message.contains("3 blocks of 512 tokens listed for 40 input tokens, expected 1"));
}

#[test]
fn coarse_chunks_are_named_by_their_last_block_and_lose_the_incomplete_tail() {
    let trace = read(KVTRACE).expect("is well formed");
    let coarse = trace.coarsen(128).expect("is a multiple");
    assert_eq!(coarse.chunk_tokens(), 128);
    assert_eq!(
        chains(&coarse),
        [vec![0, 1], vec![0], vec![], vec![0, 1, 2]]
    );
    assert_eq!((coarse.unique_chunks(), coarse.chunk_refs()), (3, 6));
    assert_eq!(trace.coarsen(64).expect("is a multiple"), trace);
}

#[test]
fn chunk_sizes_that_blocks_cannot_fill_are_refused() {
    let trace = read(KVTRACE).expect("is well formed");
    for size in [0, 1, 63, 96, u64::from(u32::MAX), u64::MAX] {
        assert!(
            matches!(
                trace.coarsen(size),
                Err(ChunkSizeError::NotAMultiple { .. })
            ),
            "{size}"
        );
    }
    assert!(matches!(
        trace.coarsen(448),
        Err(ChunkSizeError::NoFullChunk { .. })
    ));
}

#[test]
fn malformed_lines_are_named_by_number_and_column() {
    let bad = MOONCAKE.replacen("\"input_length\": 1024", "\"input_length\": \"1024\"", 1);
    let (line, fault, message) = refused(&bad);
    assert_eq!(line, 2);
    assert!(matches!(fault, Fault::Malformed(_)));
    assert!(
        message.contains("invalid type: string \"1024\", expected u64 (column"),
        "{message}"
    );
    for line in [
        "{",
        "[]",
        "{\"timestamp\":1}",
        "{}}",
        "nonsense",
        "\u{0}",
        "{\"timestamp\":NaN}",
    ] {
        let (number, fault, _) = refused(format!("{MOONCAKE}\n{line}\n"));
        assert_eq!(number, 5);
        assert!(matches!(fault, Fault::Malformed(_)), "{line}");
    }
}

#[test]
fn negative_counts_and_ids_are_malformed() {
    for line in [
        r#"{"timestamp":1,"input_length":-5,"output_length":1,"hash_ids":[]}"#,
        r#"{"timestamp":1,"input_length":512,"output_length":1,"hash_ids":[-1]}"#,
        r#"{"timestamp":1,"input_length":1e400,"output_length":1,"hash_ids":[]}"#,
    ] {
        assert!(
            matches!(refused(line), (1, Fault::Malformed(_), _)),
            "{line}"
        );
    }
}

#[test]
fn unknown_formats_are_refused_at_the_first_line() {
    for text in [
        "time,hash\n1,2\n",
        "[1,2]",
        "{\"a\":1}\n",
        "\"x\"",
        "PK\u{3}\u{4}",
    ] {
        assert!(
            matches!(refused(text), (1, Fault::UnknownFormat, _)),
            "{text}"
        );
    }
    let later = KVTRACE.replace("kvtrace-1", "kvtrace-9");
    let (line, _, message) = refused(later);
    assert_eq!(
        (line, message.as_str()),
        (
            1,
            "t.jsonl:1: unknown format \"kvtrace-9\": expected \"kvtrace-1\""
        )
    );
}

#[test]
fn other_compressions_are_named() {
    for (magic, name) in [(&b"\x1f\x8b\x08\x00"[..], "gzip"), (b"BZh9", "bzip2")] {
        let (_, fault, message) = refused(magic);
        assert!(matches!(fault, Fault::Compression { .. }));
        assert!(message.contains(name), "{message}");
    }
}

#[test]
fn a_truncated_zstd_stream_is_an_error_wherever_it_is_cut() {
    let whole = zstd(KVTRACE);
    for cut in 4..whole.len() {
        let (_, fault, _) = refused(&whole[..cut]);
        assert!(matches!(fault, Fault::Truncated), "cut at {cut}: {fault:?}");
    }
}

#[test]
fn damaged_and_trailing_bytes_in_a_zstd_stream_are_errors() {
    let mut trailing = zstd(MOONCAKE);
    trailing.extend(b"rubbish");
    assert!(matches!(refused(trailing), (_, Fault::Read(_), _)));
}

#[test]
fn a_plain_file_cut_between_lines_is_incomplete() {
    let cut = KVTRACE.trim_end().rsplit_once('\n').expect("has lines").0;
    let (_, fault, _) = refused(cut);
    assert!(matches!(
        fault,
        Fault::Incomplete {
            expected: 4,
            found: 3
        }
    ));
    let surplus = KVTRACE.replace("\"requests\":4", "\"requests\":3");
    assert!(matches!(
        refused(surplus),
        (5, Fault::Surplus { expected: 3 }, _)
    ));
}

#[test]
fn times_that_are_negative_or_go_back_or_overflow_are_refused() {
    let with_time = |time: &str| MOONCAKE.replacen("3000.5", time, 1);
    assert!(matches!(
        refused(with_time("-1")),
        (3, Fault::NegativeTime { .. }, _)
    ));
    let (line, _, message) = refused(with_time("2999"));
    assert_eq!(line, 3);
    assert!(
        message.contains("time goes back: 2999000 µs after 3000000 µs"),
        "{message}"
    );
    for time in ["18446744073709551615", "1e300"] {
        assert!(matches!(
            refused(with_time(time)),
            (3, Fault::TimeOutOfRange { .. }, _)
        ));
    }
}

#[test]
fn references_before_the_first_request_are_refused() {
    let bad = KVTRACE.replace("[1,2]", "[2,2]");
    assert!(matches!(
        refused(bad),
        (
            3,
            Fault::BackTooFar {
                back: 2,
                requests: 1
            },
            _
        )
    ));
    let bad = KVTRACE.replace("[1,2]", &format!("[{},2]", u64::MAX));
    assert!(matches!(refused(bad), (3, Fault::BackTooFar { .. }, _)));
}

#[test]
fn a_prefix_longer_than_its_request_is_refused() {
    let bad = KVTRACE.replace(
        "\"in\":200,\"out\":6,\"s\":4,\"f\":1,\"p\":[1,2]",
        "\"in\":384,\"out\":6,\"p\":[1,5]",
    );
    assert!(matches!(
        refused(bad),
        (3, Fault::KeepTooLong { keep: 5, blocks: 4 }, _)
    ));
    let bad = KVTRACE.replace(
        "\"in\":300,\"out\":5,\"s\":3,\"f\":0,\"p\":[0,0]",
        "\"in\":384,\"out\":5,\"p\":[0,2]",
    );
    assert!(matches!(
        refused(bad),
        (2, Fault::KeepTooLong { keep: 2, blocks: 0 }, _)
    ));
}

#[test]
fn absurd_run_lengths_are_refused_before_anything_is_made_of_them() {
    let header = r#"{"format":"kvtrace-1","block_size":1}"#;
    for run in [
        "[0,1000000000000]",
        "[0,18446744073709551615],[0,2]",
        "[0,16777216],[0,1]",
    ] {
        let text = format!(
            "{header}\n{{\"t\":0,\"in\":1000000000000,\"out\":1,\"p\":[0,0],\"n\":[{run}]}}\n"
        );
        let (line, fault, _) = refused(text);
        assert!(
            matches!(fault, Fault::ChainTooLong { blocks } if blocks > MAX_BLOCKS_PER_REQUEST),
            "{run}"
        );
        assert_eq!(line, 2);
    }
    let text = format!(
        "{header}\n{{\"t\":0,\"in\":3,\"out\":1,\"p\":[0,0],\"n\":[[18446744073709551615,3]]}}\n"
    );
    assert!(matches!(
        refused(text),
        (2, Fault::SparseRun { next: 0, .. }, _)
    ));
}

#[test]
fn block_counts_that_contradict_the_tokens_are_refused() {
    let bad = KVTRACE.replace("[[4,1]]", "[[4,2]]");
    assert!(matches!(
        refused(bad),
        (
            3,
            Fault::BlockCount {
                blocks: 4,
                expected: 3,
                ..
            },
            _
        )
    ));
    for size in ["0", "4294967296"] {
        let bad = KVTRACE.replace("\"block_size\":64", &format!("\"block_size\":{size}"));
        assert!(matches!(refused(bad), (1, Fault::BlockSize { .. }, _)));
    }
}

#[test]
fn a_ten_gibibyte_line_is_refused_after_its_first_mebibytes() {
    struct Counted<R>(R, u64);
    impl<R: Read> Read for Counted<R> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let read = self.0.read(buffer)?;
            self.1 += read as u64;
            Ok(read)
        }
    }
    let endless = MOONCAKE.as_bytes().chain(io::repeat(b'7').take(10 << 30));
    let mut input = Counted(endless, 0);
    let outcome = read_trace_from(&mut input, "t", &ReadOptions::default(), &mut unobserved);
    let Err(TraceError::Line {
        line: 4,
        fault: Fault::LineTooLong { limit },
        ..
    }) = outcome
    else {
        panic!("{outcome:?}");
    };
    assert_eq!(limit, MAX_LINE_BYTES);
    assert!(
        input.1 < 2 * MAX_LINE_BYTES as u64,
        "{} bytes read",
        input.1
    );
}

#[test]
fn a_long_line_inside_a_small_zstd_file_is_refused_too() {
    let mut packed = zstd::Encoder::new(Vec::new(), 3).expect("in memory");
    for _ in 0..64 {
        packed.write_all(&[b'['; 1 << 20]).expect("in memory");
    }
    let packed = packed.finish().expect("in memory");
    assert!(packed.len() < 1 << 20);
    assert!(matches!(refused(packed), (1, Fault::LineTooLong { .. }, _)));
}

#[test]
fn deep_nesting_is_malformed() {
    let text = format!("{{\"hash_ids\":{}", "[".repeat(1 << 20));
    assert!(matches!(refused(text), (1, Fault::Malformed(_), _)));
}

#[test]
fn files_without_a_request_are_named_empty() {
    let header = r#"{"format":"kvtrace-1","block_size":64}"#;
    for text in ["", "\n\n  \n", header] {
        assert!(
            matches!(read(text), Err(TraceError::Empty { .. })),
            "{text:?}"
        );
    }
    assert!(matches!(read(zstd("")), Err(TraceError::Empty { .. })));
}

#[test]
fn what_cannot_be_opened_is_named_with_its_cause() {
    let directory = std::env::temp_dir();
    for (path, kind) in [
        (directory.as_path(), io::ErrorKind::IsADirectory),
        (Path::new("no/such/trace.jsonl"), io::ErrorKind::NotFound),
    ] {
        let outcome = read_trace(path, &ReadOptions::default(), &mut unobserved);
        let Err(error @ TraceError::Open { .. }) = outcome else {
            panic!("{outcome:?}");
        };
        assert!(
            error
                .to_string()
                .starts_with(&format!("{}: ", path.display()))
        );
        let TraceError::Open { source, .. } = error else {
            unreachable!("matched above")
        };
        assert_eq!(source.kind(), kind);
    }
}

#[test]
fn a_byte_order_mark_and_windows_line_ends_are_accepted() {
    let text = format!("\u{feff}{}", KVTRACE.replace('\n', "\r\n"));
    assert_eq!(
        chains(&read(text).expect("reads")),
        chains(&read(KVTRACE).expect("reads"))
    );
}

#[test]
fn reading_reports_its_progress_and_stops_when_told() {
    let line = MOONCAKE.lines().next().expect("has lines");
    let text = format!("{line}\n").repeat(20_000);
    let file = std::env::temp_dir().join(format!("kvferry-reading-{}.jsonl", std::process::id()));
    fs::write(&file, &text).expect("the temporary directory is writable");
    let mut seen = Vec::new();
    let mut watch = |progress| {
        seen.push(progress);
        ControlFlow::Continue(())
    };
    read_trace(&file, &ReadOptions::default(), &mut watch).expect("reads");
    let mut stop = |_| ControlFlow::Break(());
    let stopped = read_trace(&file, &ReadOptions::default(), &mut stop);
    fs::remove_file(&file).expect("was written above");
    assert!(matches!(stopped, Err(TraceError::Interrupted)));
    assert!(seen.len() >= 3);
    let bytes: Vec<u64> = seen
        .iter()
        .map(|progress| match progress {
            Progress::Reading { bytes, of } => {
                assert_eq!(*of, Some(text.len() as u64));
                *bytes
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(bytes.is_sorted() && bytes[0] > 0 && bytes[bytes.len() - 1] <= text.len() as u64);
}
