//! Rows to Parquet: a part in memory, a part on disk, many parts to one file.

use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{anyhow, ensure, Context, Result};
use parquet::basic::{Compression, ZstdLevel};
use parquet::column::writer::ColumnCloseResult;
use parquet::data_type::{DataType, FloatType, Int32Type, Int64Type};
use parquet::file::metadata::{KeyValue, ParquetMetaDataReader};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::TypePtr;

use super::{KnownCost, Meta, ProcessWindow, Row};
use super::{COLUMNS, KNOWN_COLUMNS, META_KEY, TO_COLUMN};

/// Level of zstd: beyond it a trace gets slower to write and hardly smaller.
const ZSTD_LEVEL: i32 = 3;

/// Rows of a row group at most.
pub const GROUP_ROWS: usize = 128 << 10;

/// Rows that are not written yet.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The regions.
    pub rows: Vec<Row>,
    /// What their processes did, by process and window.
    pub processes: HashMap<(u32, u32), ProcessWindow>,
}

fn schema(compressed_tiers: usize) -> Result<TypePtr> {
    let mut text = String::from("message terrace {\n");
    for (_, column) in COLUMNS {
        text += &format!("required {column};\n");
    }
    text += &format!("optional int32 {TO_COLUMN} (INTEGER(8,false));\n");
    for tier in 1..=compressed_tiers {
        text += &format!("optional float ratio_{tier};\n");
    }
    for tier in 1..=compressed_tiers {
        for column in KNOWN_COLUMNS {
            text += &format!("optional float {column}{tier};\n");
        }
    }
    text.push('}');
    Ok(Arc::new(parse_message_type(&text)?))
}

fn properties(meta: Option<&Meta>) -> Result<Arc<WriterProperties>> {
    let meta = meta.map(serde_json::to_string).transpose()?;
    let meta = meta.map(|json| vec![KeyValue::new(META_KEY.into(), json)]);
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_key_value_metadata(meta);
    Ok(Arc::new(properties.build()))
}

/// A whole file as bytes. Row groups hold whole runs of windows, [`GROUP_ROWS`] rows at most, in
/// the order of process, region and window, in which neighbours are most alike.
pub fn encode(batch: &mut Batch, meta: &Meta) -> Result<Vec<u8>> {
    let compressed = meta.tiers.len().saturating_sub(1);
    if batch.rows.len() > GROUP_ROWS {
        batch.rows.sort_unstable_by_key(|row| (row.window, row.pid, row.region));
    }
    let mut file =
        SerializedFileWriter::new(Vec::new(), schema(compressed)?, properties(Some(meta))?)?;
    let (nothing, processes) = (ProcessWindow::default(), &batch.processes);
    let process = |row: &Row| processes.get(&(row.pid, row.window)).unwrap_or(&nothing);
    for group in batch.rows.chunks_mut(GROUP_ROWS) {
        group.sort_unstable_by_key(|row| (row.pid, row.region, row.window));
        let rows = group.iter().map(|row| (row, process(row))).collect();
        let mut columns = Columns { rows, group: file.next_row_group()? };
        columns.write(compressed)?;
        columns.group.close()?;
    }
    Ok(file.into_inner()?)
}

struct Columns<'a, W: Write + Send> {
    rows: Vec<(&'a Row, &'a ProcessWindow)>,
    group: SerializedRowGroupWriter<'a, W>,
}

impl<W: Write + Send> Columns<'_, W> {
    fn write(&mut self, compressed: usize) -> Result<()> {
        // In the order of COLUMNS.
        self.i32(|r, _| r.window as i32)?;
        self.i64(|_, p| p.time_ms)?;
        self.i32(|r, _| r.pid as i32)?;
        self.i64(|r, _| r.region)?;
        self.i32(|r, _| i32::from(r.pages))?;
        self.i32(|r, _| i32::from(r.resident))?;
        self.i32(|r, _| i32::from(r.resident_at_open))?;
        self.i32(|r, _| i32::from(r.tier))?;
        self.i32(|r, _| i32::from(r.samples))?;
        self.i32(|r, _| i32::from(r.hits))?;
        self.i32(|r, _| i32::from(r.faults))?;
        self.f32(|r, _| r.touched)?;
        self.i32(|r, _| r.stored_bytes as i32)?;
        self.i64(|_, p| p.running_ns)?;
        self.i64(|_, p| p.stalled_ns)?;
        self.i64(|_, p| p.cpu_ns)?;
        self.f32(|_, p| p.contention)?;
        self.i32(|_, p| p.moved_pages as i32)?;
        self.i32(|_, p| p.ahead_pages as i32)?;
        self.i64(|_, p| p.managed_bytes)?;
        self.i64(|_, p| p.overhead_bytes)?;
        self.f32(|_, p| p.tco_saved)?;
        self.i64(|_, p| p.pool_bytes)?;
        self.i32(|_, p| p.served_faults as i32)?;
        self.optional::<Int32Type>(|r, _| r.to.map(i32::from))?;
        for tier in 1..=compressed {
            self.optional::<FloatType>(|r, _| r.ratios.get(tier).map(|ratio| ratio as f32))?;
        }
        for tier in 1..=compressed {
            // In the order of KNOWN_COLUMNS.
            let of: [fn(KnownCost) -> f32; 3] = [|k| k.fault_ns, |k| k.ratio, |k| k.move_ns];
            for of in of {
                self.optional::<FloatType>(|_, p| p.known[tier].map(of))?;
            }
        }
        Ok(())
    }

    fn i32(&mut self, of: impl Fn(&Row, &ProcessWindow) -> i32) -> Result<()> {
        self.required::<Int32Type>(of)
    }

    fn i64(&mut self, of: impl Fn(&Row, &ProcessWindow) -> u64) -> Result<()> {
        self.required::<Int64Type>(|r, p| of(r, p) as i64)
    }

    fn f32(&mut self, of: impl Fn(&Row, &ProcessWindow) -> f32) -> Result<()> {
        self.required::<FloatType>(of)
    }

    fn required<T: DataType>(&mut self, of: impl Fn(&Row, &ProcessWindow) -> T::T) -> Result<()> {
        let values: Vec<T::T> = self.rows.iter().map(|(row, process)| of(row, process)).collect();
        self.put::<T>(&values, None)
    }

    fn optional<T: DataType>(
        &mut self,
        of: impl Fn(&Row, &ProcessWindow) -> Option<T::T>,
    ) -> Result<()> {
        let all: Vec<Option<T::T>> =
            self.rows.iter().map(|(row, process)| of(row, process)).collect();
        let levels: Vec<i16> = all.iter().map(|value| i16::from(value.is_some())).collect();
        let values: Vec<T::T> = all.into_iter().flatten().collect();
        self.put::<T>(&values, Some(&levels))
    }

    fn put<T: DataType>(&mut self, values: &[T::T], levels: Option<&[i16]>) -> Result<()> {
        let mut column = self.group.next_column()?.context("the schema has fewer columns")?;
        column.typed::<T>().write_batch(values, levels, None)?;
        column.close()?;
        Ok(())
    }
}

/// Writes a part so that it is there as a whole or not at all.
pub fn put(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let written = write(&new, bytes).and_then(|()| std::fs::rename(&new, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    written.with_context(|| format!("{} cannot be written", path.display()))
}

/// Writes a trace so that it is there as a whole or not at all, and in nobody's place.
pub fn put_new(path: &Path, bytes: &[u8]) -> Result<()> {
    refuse_taken(path)?;
    // A name of ours alone: what is called TRACE.new may be somebody's.
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".new-{}", std::process::id()));
    let new = PathBuf::from(name);
    let written = write(&new, bytes)
        .with_context(|| format!("{} cannot be written", path.display()))
        .and_then(|()| give_name(&new, path));
    let _ = std::fs::remove_file(&new);
    written
}

/// An error if there is something at `path`, if only a link to nowhere.
pub fn refuse_taken(path: &Path) -> Result<()> {
    ensure!(path.symlink_metadata().is_err(), taken(path));
    Ok(())
}

fn taken(path: &Path) -> String {
    format!("{} exists; move it away, or name another file", path.display())
}

fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Gives a whole file its name, unless that is taken. It may keep its old name as well.
fn give_name(new: &Path, path: &Path) -> Result<()> {
    let linked = match std::fs::hard_link(new, path) {
        // Not every file system has hard links. The name may be taken between the two calls.
        Err(e) if e.kind() != ErrorKind::AlreadyExists => match path.symlink_metadata() {
            Ok(_) => Err(ErrorKind::AlreadyExists.into()),
            Err(_) => std::fs::rename(new, path),
        },
        linked => linked,
    };
    linked.map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists => anyhow!(taken(path)),
        _ => anyhow!(e).context(format!("{} cannot be written", path.display())),
    })
}

/// Joins whole files of one schema, of the folder `folder`, into one at `path`, where nothing may
/// be: their row groups are copied as they are, and `meta` takes the place of their metadata.
pub fn join(folder: &Path, parts: &[PathBuf], meta: &Meta, path: &Path) -> Result<()> {
    ensure!(!parts.is_empty(), "there is nothing to join");
    // Not called .parquet, so that nobody takes it for a part.
    let new = folder.join("joined.new");
    let written = copy_parts(parts, meta, &new)
        .with_context(|| format!("{} cannot be written", path.display()))
        .and_then(|()| give_name(&new, path));
    let _ = std::fs::remove_file(&new);
    written
}

fn copy_parts(parts: &[PathBuf], meta: &Meta, new: &Path) -> Result<()> {
    let schema = schema(meta.tiers.len().saturating_sub(1))?;
    let mut out = SerializedFileWriter::new(File::create(new)?, schema, properties(Some(meta))?)?;
    for part in parts {
        let input = File::open(part).with_context(|| format!("cannot read {}", part.display()))?;
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&input)?;
        for group in metadata.row_groups() {
            let mut copy = out.next_row_group()?;
            for column in group.columns() {
                let closed = ColumnCloseResult {
                    bytes_written: column.compressed_size() as u64,
                    rows_written: group.num_rows() as u64,
                    metadata: column.clone(),
                    bloom_filter: None,
                    column_index: None,
                    offset_index: None,
                };
                copy.append_column(&input, closed)?;
            }
            copy.close()?;
        }
    }
    out.into_inner()?.sync_all()?;
    Ok(())
}
