//! Parquet to rows: a file, or the folder of parts that a killed run left.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure, Context, Result};
use parquet::column::reader::ColumnReader;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use terrace_core::tier::MAX_TIERS;

use super::write::Batch;
use super::{partial_of, KnownCost, Meta, ProcessWindow, Row, FORMAT, META_KEY};
use super::{KNOWN_COLUMNS, POOL_COLUMN, SERVED_COLUMN, TO_COLUMN};

/// A trace in memory.
#[derive(Clone, Debug)]
pub struct Trace {
    /// What is known of it as a whole.
    pub meta: Meta,
    /// Its rows.
    pub batch: Batch,
}

/// The parts in a folder that [`super::record`] makes, in their order.
pub fn parts(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)
        .with_context(|| format!("cannot read the folder {}", folder.display()))?;
    let mut parts: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "parquet"))
        .collect();
    parts.sort();
    Ok(parts)
}

/// Reads a trace.
pub fn read(path: &Path) -> Result<Trace> {
    if path.is_dir() {
        let parts = parts(path)?;
        ensure!(
            !parts.is_empty(),
            "{} has no complete part: the run was killed before the first was written",
            path.display()
        );
        let mut all: Option<Trace> = None;
        for part in parts {
            let next = read_file(&part)?;
            match &mut all {
                None => all = Some(next),
                Some(all) => {
                    // What was measured last is measured best.
                    all.meta = next.meta;
                    all.batch.rows.extend(next.batch.rows);
                    all.batch.processes.extend(next.batch.processes);
                }
            }
        }
        return all.context("no part");
    }
    if !path.exists() && partial_of(path).is_dir() {
        bail!(
            "{} does not exist: its recording still runs, or was killed. What there is of it is in \
             {}; `terrace sim --merge {} -o {}` makes a whole file of that",
            path.display(),
            partial_of(path).display(),
            partial_of(path).display(),
            path.display()
        );
    }
    read_file(path)
}

fn read_file(path: &Path) -> Result<Trace> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    read_groups(file).with_context(|| format!("{} is not a trace", path.display()))
}

fn read_groups(file: File) -> Result<Trace> {
    let reader = SerializedFileReader::new(file)?;
    let of_file = reader.metadata().file_metadata();
    let values = of_file.key_value_metadata().map_or(&[][..], |values| values.as_slice());
    let json = values.iter().find(|v| v.key == META_KEY).and_then(|v| v.value.as_ref());
    let meta: serde_json::Value = serde_json::from_str(json.context("no terrace metadata")?)?;
    let format = meta.get("format").and_then(serde_json::Value::as_u64).unwrap_or(0);
    ensure!(format == u64::from(FORMAT), "format {format}, this terrace reads {FORMAT}");
    let meta: Meta = serde_json::from_value(meta)?;
    let tiers = meta.tiers.len();
    ensure!((1..=MAX_TIERS).contains(&tiers), "{tiers} tiers");
    let mut trace = Trace { meta, batch: Batch::default() };
    for index in 0..reader.num_row_groups() {
        read_group(&*reader.get_row_group(index)?, tiers, &mut trace.batch)?;
    }
    Ok(trace)
}

fn read_group(group: &dyn RowGroupReader, tiers: usize, batch: &mut Batch) -> Result<()> {
    let count = group.metadata().num_rows() as usize;
    let columns = Columns { group, count };
    let mut rows = vec![Row::default(); count];
    columns.whole("window", |at, v| rows[at].window = v as u32)?;
    columns.whole("pid", |at, v| rows[at].pid = v as u32)?;
    let (keys, of_row) = processes_of(&rows);
    let mut of_key = vec![ProcessWindow::default(); keys.len()];
    columns.whole("region", |at, v| rows[at].region = v as u64)?;
    columns.whole("pages", |at, v| rows[at].pages = v as u16)?;
    columns.whole("resident", |at, v| rows[at].resident = v as u16)?;
    columns.whole("resident_at_open", |at, v| rows[at].resident_at_open = v as u16)?;
    columns.whole("tier", |at, v| rows[at].tier = v as u8)?;
    columns.whole("samples", |at, v| rows[at].samples = v as u8)?;
    columns.whole("hits", |at, v| rows[at].hits = v as u8)?;
    columns.whole("faults", |at, v| rows[at].faults = v as u16)?;
    columns.float("touched", |at, v| rows[at].touched = v)?;
    columns.whole("stored_bytes", |at, v| rows[at].stored_bytes = v as u32)?;
    columns.whole(TO_COLUMN, |at, v| rows[at].to = Some(v as u8))?;
    for tier in 1..tiers {
        let set = |at: usize, v: f32| rows[at].ratios.set(tier, f64::from(v));
        columns.float(&format!("ratio_{tier}"), set)?;
    }
    columns.whole("time_ms", |at, v| of_key[of_row[at]].time_ms = v as u64)?;
    columns.whole("running_ns", |at, v| of_key[of_row[at]].running_ns = v as u64)?;
    columns.whole("stalled_ns", |at, v| of_key[of_row[at]].stalled_ns = v as u64)?;
    columns.whole("cpu_ns", |at, v| of_key[of_row[at]].cpu_ns = v as u64)?;
    columns.float("contention", |at, v| of_key[of_row[at]].contention = v)?;
    columns.whole("moved_pages", |at, v| of_key[of_row[at]].moved_pages = v as u32)?;
    columns.whole("ahead_pages", |at, v| of_key[of_row[at]].ahead_pages = v as u32)?;
    columns.whole("managed_bytes", |at, v| of_key[of_row[at]].managed_bytes = v as u64)?;
    columns.whole("overhead_bytes", |at, v| of_key[of_row[at]].overhead_bytes = v as u64)?;
    columns.float("tco_saved", |at, v| of_key[of_row[at]].tco_saved = v)?;
    if columns.has(POOL_COLUMN) {
        columns.whole(POOL_COLUMN, |at, v| of_key[of_row[at]].pool_bytes = v as u64)?;
    }
    if columns.has(SERVED_COLUMN) {
        columns.whole(SERVED_COLUMN, |at, v| of_key[of_row[at]].served_faults = v as u32)?;
    }
    for tier in 1..tiers {
        let set: [fn(&mut KnownCost, f32); 3] =
            [|k, v| k.fault_ns = v, |k, v| k.ratio = v, |k, v| k.move_ns = v];
        for (column, set) in KNOWN_COLUMNS.iter().zip(set) {
            let column = format!("{column}{tier}");
            if columns.has(&column) {
                let known =
                    |at: usize, v| set(of_key[of_row[at]].known[tier].get_or_insert_default(), v);
                columns.float(&column, known)?;
            }
        }
    }
    batch.processes.extend(keys.into_iter().zip(of_key));
    batch.rows.extend(rows);
    Ok(())
}

/// The processes and windows of rows, and which of them each row is of. There are few, and rows
/// go round them in one order: it is looked up only where that order ends.
fn processes_of(rows: &[Row]) -> (Vec<(u32, u32)>, Vec<usize>) {
    let (mut keys, mut places) = (Vec::new(), HashMap::new());
    let mut guess = 0;
    let of_row = rows.iter().map(|row| {
        let key = (row.pid, row.window);
        let place = match keys.get(guess) == Some(&key) {
            true => guess,
            false => *places.entry(key).or_insert_with(|| {
                keys.push(key);
                keys.len() - 1
            }),
        };
        guess = place + 1;
        place
    });
    let of_row = of_row.collect();
    (keys, of_row)
}

struct Columns<'a> {
    group: &'a dyn RowGroupReader,
    count: usize,
}

impl Columns<'_> {
    fn index(&self, name: &str) -> Option<usize> {
        let schema = self.group.metadata().schema_descr();
        (0..schema.num_columns()).find(|&i| schema.column(i).name() == name)
    }

    fn has(&self, name: &str) -> bool {
        self.index(name).is_some()
    }

    fn reader(&self, name: &str) -> Result<ColumnReader> {
        let index = self.index(name).with_context(|| format!("no column {name}"))?;
        Ok(self.group.get_column_reader(index)?)
    }

    /// Calls `set` for every row that has a whole number in the column.
    fn whole(&self, name: &str, mut set: impl FnMut(usize, i64)) -> Result<()> {
        match self.reader(name)? {
            ColumnReader::Int32ColumnReader(mut reader) => {
                // Unsigned ones are kept in the bits of signed ones.
                self.each(&mut reader, |at, v: i32| set(at, i64::from(v as u32)))
            }
            ColumnReader::Int64ColumnReader(mut reader) => self.each(&mut reader, set),
            _ => bail!("column {name} holds no whole numbers"),
        }
    }

    fn float(&self, name: &str, set: impl FnMut(usize, f32)) -> Result<()> {
        match self.reader(name)? {
            ColumnReader::FloatColumnReader(mut reader) => self.each(&mut reader, set),
            _ => bail!("column {name} holds no floats"),
        }
    }

    fn each<T: parquet::data_type::DataType>(
        &self,
        reader: &mut parquet::column::reader::ColumnReaderImpl<T>,
        mut set: impl FnMut(usize, T::T),
    ) -> Result<()> {
        let (mut values, mut levels, mut rows) = (Vec::new(), Vec::new(), 0);
        while rows < self.count {
            let (read, _, _) =
                reader.read_records(self.count - rows, Some(&mut levels), None, &mut values)?;
            ensure!(read > 0, "a column ends early");
            rows += read;
        }
        if levels.is_empty() {
            // Required: every row has a value.
            ensure!(values.len() == rows, "a column of another length");
            values.into_iter().enumerate().for_each(|(at, value)| set(at, value));
            return Ok(());
        }
        ensure!(levels.len() == rows, "a column of another length");
        let mut values = values.into_iter();
        for (at, _) in levels.iter().enumerate().filter(|(_, level)| **level > 0) {
            set(at, values.next().context("fewer values than rows")?);
        }
        Ok(())
    }
}
