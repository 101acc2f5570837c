use memmap2::MmapMut;

use super::{Copier, Kernel, Span};

/// Bytes of no pattern that a copy could hit by chance: neighbours differ, and so do offsets.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        })
        .collect()
}

/// Copies within owned vectors.
fn copy(kernel: Kernel, from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len());
    let span = Span {
        source: from.as_ptr().expose_provenance(),
        destination: to.as_mut_ptr().expose_provenance(),
        bytes: from.len(),
    };
    // SAFETY: both are borrowed slices of that length, and a unique borrow lies apart from others.
    unsafe { Copier::with(kernel, 0).copy(std::iter::once(span)) };
}

#[test]
fn every_kernel_copies_its_bytes_and_no_other_at_every_size_and_alignment() {
    const GUARD: usize = 80;
    let source = noise(1024, 7);
    let before = noise(1024, 11);
    let mut destination = before.clone();
    for kernel in Kernel::available() {
        for bytes in 0..=300 {
            for to in 0..64 {
                // One alignment of the source for each of the destination, all pairs over the sizes.
                let from = (to * 7 + bytes) % 64;
                let (start, end) = (GUARD + to, GUARD + to + bytes);
                copy(
                    kernel,
                    &source[from..from + bytes],
                    &mut destination[start..end],
                );
                assert_eq!(
                    destination[start..end],
                    source[from..from + bytes],
                    "{kernel:?}"
                );
                assert_eq!(
                    destination[..start],
                    before[..start],
                    "{kernel:?} {bytes} before {to}"
                );
                assert_eq!(
                    destination[end..],
                    before[end..],
                    "{kernel:?} {bytes} after {to}"
                );
                destination[start..end].copy_from_slice(&before[start..end]);
            }
        }
    }
}

#[test]
fn every_kernel_copies_large_ranges() {
    for kernel in Kernel::available() {
        for (from, to, bytes) in [
            (0, 0, 1 << 20),
            (3, 61, 300_001),
            (63, 1, 65_536),
            (9, 0, 4095),
        ] {
            let source = noise(from + bytes, 3);
            let mut destination = vec![0; to + bytes];
            copy(kernel, &source[from..], &mut destination[to..]);
            assert_eq!(destination[to..], source[from..], "{kernel:?} {bytes}");
            assert!(destination[..to].iter().all(|&byte| byte == 0));
        }
    }
}

/// A byte too many would be read or written outside the mapping: a fault of the process.
#[test]
fn no_kernel_touches_a_byte_past_the_end_of_a_mapping() {
    let page = rustix::param::page_size();
    let ends_at_a_hole = || {
        let mut map = MmapMut::map_anon(2 * page).unwrap();
        let hole = map.as_mut_ptr().wrapping_add(page).cast();
        // SAFETY: the page belongs to the map above, and nobody holds a reference into it.
        unsafe { rustix::mm::mprotect(hole, page, rustix::mm::MprotectFlags::empty()) }.unwrap();
        map
    };
    let mut source = ends_at_a_hole();
    let mut destination = ends_at_a_hole();
    source[..page].copy_from_slice(&noise(page, 5));
    for kernel in Kernel::available() {
        for bytes in (0..=600).chain([page]) {
            let start = page - bytes;
            copy(kernel, &source[start..page], &mut destination[start..page]);
            assert_eq!(
                destination[start..page],
                source[start..page],
                "{kernel:?} {bytes}"
            );
        }
    }
}

#[test]
fn many_spans_are_copied_each_to_its_own_place() {
    let source = noise(1 << 18, 13);
    for kernel in Kernel::available() {
        let mut destination = vec![0; source.len()];
        let base = destination.as_mut_ptr().expose_provenance();
        let from = source.as_ptr().expose_provenance();
        let (mut spans, mut expected) = (Vec::new(), destination.clone());
        for (i, start) in (0..source.len() - 5000).step_by(5000).enumerate() {
            let bytes = 1 + (i * 977) % 5000;
            spans.push(Span {
                source: from + start,
                destination: base + start,
                bytes,
            });
            expected[start..start + bytes].copy_from_slice(&source[start..start + bytes]);
        }
        // SAFETY: each span is `start..start + bytes` of both vectors, of one length; the spans lie
        // apart, and nobody else knows the vectors.
        unsafe { Copier::with(kernel, 2048).copy(spans.into_iter()) };
        assert_eq!(destination, expected, "{kernel:?}");
    }
}
