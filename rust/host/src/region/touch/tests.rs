use std::io::Write as _;

use memmap2::{MmapMut, MmapOptions};

use super::*;

const BYTES: usize = 1 << 20;

fn touch<'a>(map: &'a MmapRaw, file: Option<&'a File>) -> Touch<'a> {
    Touch {
        map,
        range: 0..map.len(),
        file: file.map(|file| (file, 0)),
        alignment: 4096,
        threads: NonZeroUsize::new(2).unwrap(),
        node: None,
    }
}

fn ignore(_: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// A file with some content, in a file system that can be full.
fn file(content: &[u8], bytes: u64) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    file.set_len(bytes).unwrap();
    file
}

fn blocks(file: &File) -> u64 {
    u64::try_from(rustix::fs::fstat(file).unwrap().st_blocks).unwrap() * 512
}

#[test]
fn both_ways_make_all_pages_and_keep_what_is_there() {
    for populate in [true, false] {
        let content: Vec<u8> = (0..BYTES / 2).map(|at| at.to_le_bytes()[0] | 1).collect();
        let file = file(&content, BYTES as u64);
        assert!(blocks(&file) < BYTES as u64);
        let map = MmapOptions::new().len(BYTES).map_raw(&file).unwrap();
        let mut last = 0;
        let mut progress = |done| {
            last = done;
            ControlFlow::Continue(())
        };
        let touched = touch(&map, Some(&file))
            .run_with(populate, &mut progress)
            .unwrap();
        assert_eq!(touched.populated, populate);
        assert_eq!(last, BYTES as u64);
        assert!(blocks(&file) >= BYTES as u64);
        let mut now = vec![0; BYTES];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut now, 0).unwrap();
        assert_eq!(now[..content.len()], content);
        assert!(now[content.len()..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn private_pages_are_resident_afterwards() {
    for populate in [true, false] {
        let map = MmapRaw::from(MmapMut::map_anon(64 * BYTES).unwrap());
        let resident = || -> u64 {
            let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let start = format!("{:x}-", map.as_mut_ptr().addr());
            let mut lines = text.lines().skip_while(|line| !line.starts_with(&start));
            let line = lines.find(|line| line.starts_with("Rss:")).unwrap();
            line.split_ascii_whitespace()
                .nth(1)
                .unwrap()
                .parse()
                .unwrap()
        };
        assert_eq!(resident(), 0);
        touch(&map, None).run_with(populate, &mut ignore).unwrap();
        // All 64 MiB, in steps that several threads take.
        assert_eq!(resident(), 64 << 10);
    }
}

#[test]
fn only_the_range_is_touched() {
    let file = file(b"", BYTES as u64);
    let map = MmapOptions::new().len(BYTES).map_raw(&file).unwrap();
    let quarter = BYTES / 4;
    let touch = Touch {
        range: quarter..2 * quarter,
        ..touch(&map, Some(&file))
    };
    touch.run(&mut ignore).unwrap();
    let blocks = usize::try_from(blocks(&file)).unwrap();
    assert!(blocks >= quarter && blocks < BYTES, "{blocks}");
}

#[test]
fn an_empty_range_needs_nothing() {
    let map = MmapRaw::from(MmapMut::map_anon(BYTES).unwrap());
    let touch = Touch {
        range: 0..0,
        ..touch(&map, None)
    };
    touch.run(&mut ignore).unwrap();
}

#[test]
fn a_page_that_cannot_be_had_is_an_error_and_no_signal() {
    // Behind the end of a file, as in a file system that is full, an access is a SIGBUS.
    let file = file(b"", BYTES as u64);
    let map = MmapOptions::new().len(2 * BYTES).map_raw(&file).unwrap();
    let error = touch(&map, Some(&file)).run(&mut ignore).unwrap_err();
    let TouchError::Failed {
        source, address, ..
    } = error
    else {
        panic!("{error:?}")
    };
    assert_eq!(Errno::from_io_error(&source), Some(Errno::FAULT));
    assert_eq!(address, map.as_mut_ptr().addr() as u64);
}

#[test]
fn writing_reserves_the_room_before_it_writes() {
    // The file is open for reading alone, so that no room can be reserved; a write would be a fault.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, b"").unwrap();
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(BYTES as u64)
        .unwrap();
    let file = File::open(&path).unwrap();
    let map = MmapOptions::new()
        .len(BYTES)
        .map_raw_read_only(&file)
        .unwrap();
    let error = touch(&map, Some(&file))
        .run_with(false, &mut ignore)
        .unwrap_err();
    assert!(matches!(error, TouchError::Failed { .. }), "{error:?}");
}

#[test]
fn it_stops_when_told_to() {
    let map = MmapRaw::from(MmapMut::map_anon(BYTES).unwrap());
    let stopped = touch(&map, None).run(&mut |_| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(TouchError::Stopped)), "{stopped:?}");
}
