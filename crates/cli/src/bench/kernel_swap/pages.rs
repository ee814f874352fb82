//! What the measured pages hold: pieces of the machine's own programs, headers and documents. A
//! repeated pattern would flatter every codec, random bytes would be refused by all of them.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure, Context, Result};

use super::PAGE_BYTES;

/// Where to look: shared objects for binary data, the others for text.
const BINARY_DIRS: &[&str] = &["/usr/lib", "/lib", "/usr/local/lib"];
const TEXT_DIRS: &[&str] =
    &["/usr/share/doc", "/usr/share/common-licenses", "/usr/include", "/etc"];

/// Bytes taken of each kind, and the most of any one file, so that no single library dominates.
const BYTES_PER_KIND: usize = 16 << 20;
const BYTES_PER_FILE: usize = 1 << 20;
/// Directories looked into before giving up; a very large tree must not delay a benchmark.
const DIRS_MAX: usize = 2_000;

/// Pages of realistic content.
#[derive(Debug)]
pub struct PageSource {
    content: Content,
    /// Whole pages it has, none of them all of one value.
    pages: usize,
}

#[derive(Debug)]
enum Content {
    Memory(Vec<u8>),
    File(File),
}

impl PageSource {
    /// Half shared objects, half text, from files that every Linux has; the same files in the same
    /// order on every call.
    pub fn from_machine() -> Result<PageSource> {
        let is_library = |path: &Path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.ends_with(".so") || name.contains(".so.")
        };
        let is_text = |path: &Path| {
            let extension = path.extension().unwrap_or_default();
            !["gz", "xz", "zst", "png", "jpg"].iter().any(|e| extension == *e)
        };
        let mut bytes = gather(BINARY_DIRS, &is_library);
        bytes.extend(gather(TEXT_DIRS, &is_text));
        let source = PageSource::from_bytes(bytes);
        if source.pages() < 256 {
            bail!(
                "fewer than 256 pages of content under {} and {}: nothing realistic to measure \
                 with; install some packages",
                BINARY_DIRS.join(", "),
                TEXT_DIRS.join(", ")
            );
        }
        Ok(source)
    }

    /// Pages of the given bytes; a last part that is no whole page and pages of zeroes are left
    /// out, since every swap stores a page of one value for nothing.
    pub fn from_bytes(bytes: Vec<u8>) -> PageSource {
        let pages = bytes.chunks_exact(PAGE_BYTES).filter(|p| p.iter().any(|b| *b != p[0]));
        let bytes: Vec<u8> = pages.flatten().copied().collect();
        PageSource { pages: bytes.len() / PAGE_BYTES, content: Content::Memory(bytes) }
    }

    /// Pages of a file of them, read when they are wanted: for a process whose own memory is
    /// measured, in which content held in memory would be pushed out along with it.
    pub fn from_file(path: &Path) -> Result<PageSource> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let pages = usize::try_from(file.metadata()?.len())? / PAGE_BYTES;
        ensure!(pages > 0, "{} holds no page; write content to it first", path.display());
        Ok(PageSource { content: Content::File(file), pages })
    }

    /// Different pages it has; beyond them content repeats, with another stamp.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Writes page `n` into `page`: content, and `n` in the first eight bytes, so that no two pages
    /// are the same and a page that comes back in another's place is noticed.
    pub fn fill(&self, n: usize, page: &mut [u8]) {
        let at = (n % self.pages) * PAGE_BYTES;
        match &self.content {
            Content::Memory(bytes) => page.copy_from_slice(&bytes[at..at + PAGE_BYTES]),
            Content::File(file) => file
                .read_exact_at(page, at as u64)
                .expect("the content file is ours and stays as it is while we measure"),
        }
        page[..8].copy_from_slice(&(n as u64).to_le_bytes());
    }
}

/// Bytes of files under `dirs` that `wanted` picks, in order of their paths.
fn gather(dirs: &[&str], wanted: &dyn Fn(&Path) -> bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut open: Vec<PathBuf> = dirs.iter().rev().map(PathBuf::from).collect();
    let mut looked_into = 0;
    while let Some(dir) = open.pop() {
        looked_into += 1;
        if looked_into > DIRS_MAX {
            break;
        }
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
        paths.sort();
        for path in paths {
            // Links are not followed: many names of one library would count it many times.
            let Ok(meta) = path.symlink_metadata() else { continue };
            if meta.is_dir() {
                open.push(path);
            } else if meta.is_file() && wanted(&path) {
                let Ok(content) = fs::read(&path) else { continue };
                let take = content.len().min(BYTES_PER_FILE) / PAGE_BYTES * PAGE_BYTES;
                bytes.extend_from_slice(&content[..take]);
                if bytes.len() >= BYTES_PER_KIND {
                    return bytes;
                }
            }
        }
    }
    bytes
}
