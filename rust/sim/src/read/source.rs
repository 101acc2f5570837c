//! The bytes of a trace file: counted as they are read, and decompressed if they are compressed.

use std::cell::Cell;
use std::io::{self, BufReader, Read};
use std::rc::Rc;

use crate::error::Fault;

/// Bytes asked for at a time.
const BUFFER_BYTES: usize = 128 << 10;

/// First bytes of the compressions that people use for traces. A zstd file may also start with a
/// skippable frame, whose first byte is one of sixteen.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const ZSTD_SKIPPABLE: [u8; 3] = [0x2a, 0x4d, 0x18];
const OTHERS: [(&[u8], &str); 4] = [
    (&[0x1f, 0x8b], "gzip"),
    (b"BZh", "bzip2"),
    (&[0xfd, b'7', b'z', b'X'], "xz"),
    (&[0x04, 0x22, 0x4d, 0x18], "lz4"),
];

/// A reader that counts what was taken from it.
#[derive(Debug)]
pub(crate) struct Source<R> {
    input: R,
    position: Rc<Cell<u64>>,
}

impl<R: Read> Source<R> {
    pub(crate) fn new(input: R) -> Self {
        Self {
            input,
            position: Rc::default(),
        }
    }

    /// The count, readable while something else owns the source.
    pub(crate) fn position(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.position)
    }
}

impl<R: Read> Read for Source<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let taken = self.input.read(buffer)?;
        self.position.set(self.position.get() + taken as u64);
        Ok(taken)
    }
}

/// The text behind `source`: itself, or what its zstd stream holds.
pub(crate) fn decompressed<'a>(
    mut source: impl Read + 'a,
) -> Result<BufReader<Box<dyn Read + 'a>>, Fault> {
    let mut magic = Vec::with_capacity(4);
    source
        .by_ref()
        .take(4)
        .read_to_end(&mut magic)
        .map_err(Fault::Read)?;
    let skippable = magic.len() == 4 && magic[0] & 0xf0 == 0x50 && magic[1..] == ZSTD_SKIPPABLE;
    let zstd = magic == ZSTD || skippable;
    let other = OTHERS.iter().find(|(start, _)| magic.starts_with(start));
    let whole = io::Cursor::new(magic).chain(source);
    if let Some(&(_, with)) = other {
        return Err(Fault::Compression { with });
    }
    let text: Box<dyn Read + 'a> = if zstd {
        Box::new(zstd::Decoder::new(whole).map_err(Fault::Read)?)
    } else {
        Box::new(whole)
    };
    Ok(BufReader::with_capacity(BUFFER_BYTES, text))
}
