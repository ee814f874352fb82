//! Which pages tiers are characterised with: those of a file, of a process, or of heaps that are
//! made for it ([`super::heaps`]); evenly sampled, and without those that are one word all over,
//! which a tier never sees.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{ensure, Context, Result};
use serde::Serialize;
use terrace_store::page::same_filled;
use terrace_store::{Page, PAGE_SIZE};

use super::heap::Heap;

/// How many times as many pages as wanted are looked at, at most, where most are same-filled.
const LOOKS_MAX: u64 = 4;

/// Pages of one place.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Source {
    /// Where they are from, for people.
    pub name: String,
    /// Pages that it has.
    pub pages_there: u64,
    /// Pages of them that were looked at.
    pub looked_at: u64,
    /// Of these, pages that are one 8-byte word all over. They are left out: a tier keeps such a
    /// page as its word.
    pub same_filled: u64,
    /// Pages taken.
    pub taken: u64,
}

/// The pages to characterise with.
pub struct Data {
    /// The pages; never empty.
    pub pages: Vec<Page>,
    /// Where they are from.
    pub sources: Vec<Source>,
}

impl Data {
    /// At most `wanted` pages of a file cut at multiples of 4 KiB.
    pub fn of_file(path: &Path, wanted: usize) -> Result<Data> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let meta = file.metadata()?;
        ensure!(!meta.is_dir(), "--data: {} is a folder; name a file", path.display());
        let bytes = meta.len();
        ensure!(
            bytes >= PAGE_SIZE as u64,
            "--data: {} has {bytes} bytes and no whole page of {PAGE_SIZE}; name a larger file",
            path.display()
        );
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let read = |n: u64, page: &mut Page| {
            file.read_exact_at(page, n * PAGE_SIZE as u64)
                .map(|()| true)
                .with_context(|| format!("cannot read {}", path.display()))
        };
        let pages_there = bytes / PAGE_SIZE as u64;
        let (pages, source) = sample(format!("file {name}"), pages_there, wanted, read)?;
        Data::new(vec![(pages, source)])
    }

    /// At most `wanted` of the private anonymous pages that process `pid` has in memory.
    pub fn of_process(pid: u32, wanted: usize) -> Result<Data> {
        let heap = Heap::of(pid)?;
        let name = format!("process {pid} ({})", heap.command());
        Data::new(vec![of_heap(&heap, name, wanted)?])
    }

    /// Data of several places, some of which may have had no page.
    pub fn new(parts: Vec<(Vec<Page>, Source)>) -> Result<Data> {
        let mut data = Data { pages: Vec::new(), sources: Vec::new() };
        for (pages, source) in parts {
            data.pages.extend(pages);
            data.sources.push(source);
        }
        ensure!(
            !data.pages.is_empty(),
            "nothing to compress: {} pages of {} are each one word all over",
            data.sources.iter().map(|s| s.looked_at).sum::<u64>(),
            data.sources.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(" and ")
        );
        Ok(data)
    }

    /// Where the pages are from, in one line.
    pub fn description(&self) -> String {
        let one = |s: &Source| {
            let same = if s.same_filled == 0 {
                String::new()
            } else {
                let share = s.same_filled as f64 / s.looked_at.max(1) as f64;
                format!(", {:.0} % of those looked at same-filled and left out", share * 100.0)
            };
            format!("{}: {} of {} pages{same}", s.name, s.taken, s.pages_there)
        };
        self.sources.iter().map(one).collect::<Vec<_>>().join("; ")
    }
}

/// At most `wanted` pages of a heap.
pub fn of_heap(heap: &Heap, name: String, wanted: usize) -> Result<(Vec<Page>, Source)> {
    sample(name, heap.pages(), wanted, |n, page| Ok(heap.read(n, page)))
}

/// At most `wanted` pages of `pages_there`, evenly spread, none of them same-filled. `read` gives
/// page `n`, or false if it is no longer there.
fn sample(
    name: String,
    pages_there: u64,
    wanted: usize,
    mut read: impl FnMut(u64, &mut Page) -> Result<bool>,
) -> Result<(Vec<Page>, Source)> {
    let step = (pages_there / (wanted as u64).max(1)).max(1);
    let mut source = Source { name, pages_there, looked_at: 0, same_filled: 0, taken: 0 };
    let mut found: Vec<(u64, Page)> = Vec::new();
    let mut page = [0; PAGE_SIZE];
    // Each pass is evenly spread; another one only where too many pages were same-filled.
    for pass in 0..step.min(LOOKS_MAX) {
        // Between those of the passes before: halves, then quarters.
        let offset = [0, step / 2, step / 4, step * 3 / 4][pass as usize];
        for n in (offset..pages_there).step_by(step as usize) {
            if !read(n, &mut page)? {
                continue;
            }
            source.looked_at += 1;
            match same_filled(&page) {
                Some(_) => source.same_filled += 1,
                None => found.push((n, page)),
            }
        }
        if found.len() >= wanted {
            break;
        }
    }
    found.sort_by_key(|(n, _)| *n);
    // Passes overlap where the step is smaller than their number.
    found.dedup_by_key(|(n, _)| *n);
    let take = wanted.min(found.len());
    let pages: Vec<Page> = (0..take).map(|i| found[i * found.len() / take].1).collect();
    source.taken = pages.len() as u64;
    Ok((pages, source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::redis::TempDir;

    fn numbered(n: u64, page: &mut Page) {
        page.fill(0);
        page[..8].copy_from_slice(&(n + 1).to_le_bytes());
    }

    fn number(page: &Page) -> u64 {
        u64::from_le_bytes(page[..8].try_into().unwrap()) - 1
    }

    #[test]
    fn samples_are_evenly_spread_and_no_page_twice() {
        for (there, wanted) in [(1000, 100), (1000, 999), (7, 100), (1000, 1), (10, 4), (3, 2)] {
            let read = |n: u64, page: &mut Page| {
                numbered(n, page);
                Ok(true)
            };
            let (pages, source) = sample("x".into(), there, wanted, read).unwrap();
            assert_eq!(pages.len() as u64, there.min(wanted as u64), "{there} {wanted}");
            assert_eq!(source.taken, pages.len() as u64);
            let numbers: Vec<u64> = pages.iter().map(number).collect();
            let gap = there.div_ceil(pages.len() as u64) * 2;
            assert!(numbers.windows(2).all(|w| w[0] < w[1] && w[1] - w[0] <= gap), "{numbers:?}");
        }
    }

    #[test]
    fn same_filled_pages_are_counted_and_made_up_for() {
        let read = |n: u64, page: &mut Page| {
            page.fill(0);
            if n.is_multiple_of(3) {
                numbered(n, page);
            }
            Ok(n != 9)
        };
        let (pages, source) = sample("x".into(), 900, 100, read).unwrap();
        assert_eq!(pages.len(), 100);
        assert!(source.same_filled > 100 && source.looked_at <= 400, "{source:?}");
        assert!(pages.iter().all(|p| number(p).is_multiple_of(3) && number(p) != 9));
    }

    #[test]
    fn files_without_a_page_are_refused_by_name() {
        let folder = TempDir::new("data-test").unwrap();
        let path = folder.path().join("some");
        let error = |path: &Path| Data::of_file(path, 10).err().unwrap().to_string();
        assert!(error(&path).starts_with("cannot open "));
        for len in [0, 1, PAGE_SIZE - 1] {
            std::fs::write(&path, vec![b'x'; len]).unwrap();
            assert!(error(&path).contains(&format!("has {len} bytes and no whole page")), "{len}");
        }
        std::fs::write(&path, vec![b'x'; PAGE_SIZE * 3]).unwrap();
        assert!(error(&path).starts_with("nothing to compress: 3 pages of file some"));
        assert!(error(folder.path()).contains("is a folder"));
    }

    #[test]
    fn a_file_of_one_page_and_a_half_has_one() {
        let folder = TempDir::new("data-test").unwrap();
        let path = folder.path().join("some");
        let bytes: Vec<u8> = (0..PAGE_SIZE * 3 / 2).map(|i| (i / 7) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let data = Data::of_file(&path, 10).unwrap();
        assert_eq!(data.pages, [Page::try_from(&bytes[..PAGE_SIZE]).unwrap()]);
        assert_eq!(data.description(), "file some: 1 of 1 pages");
    }
}
