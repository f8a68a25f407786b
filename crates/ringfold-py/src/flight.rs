//! The ring of the last calls that `ringfold.torch` keeps, in which records of the shortest calls
//! take no Python object.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use ringfold::DType;
use ringfold::internals::sync::lock;

/// A sum in place, which `ringfold.torch.flight_recorder` makes a record of when asked for it.
#[derive(Debug)]
pub struct Sum {
    pub trace: Py<PyAny>,
    pub id: u64,
    /// The call's number among the group's collectives.
    pub number: u64,
    pub dtype: DType,
    pub shape: Vec<i64>,
    pub timeout_s: f64,
    pub created_ns: u64,
    /// 0 until the call is complete.
    pub completed_ns: u64,
}

/// The fields of a [`Sum`], from `trace` on.
pub type SumParts = (Py<PyAny>, u64, u64, &'static str, Vec<i64>, f64, u64, u64);

impl Sum {
    pub fn copied(&self, py: Python<'_>) -> Sum {
        Sum {
            trace: self.trace.clone_ref(py),
            shape: self.shape.clone(),
            ..*self
        }
    }

    /// Returns the arguments of `Record.of_sum`.
    pub fn into_parts(self) -> SumParts {
        (
            self.trace,
            self.id,
            self.number,
            self.dtype.name(),
            self.shape,
            self.timeout_s,
            self.created_ns,
            self.completed_ns,
        )
    }
}

#[derive(Debug)]
enum Entry {
    Record(Py<PyAny>),
    Sum(Sum),
}

impl Entry {
    fn copied(&self, py: Python<'_>) -> Entry {
        match self {
            Entry::Record(record) => Entry::Record(record.clone_ref(py)),
            Entry::Sum(sum) => Entry::Sum(sum.copied(py)),
        }
    }
}

/// The records of a process' last calls, oldest first.
#[pyclass(frozen, module = "ringfold._native")]
#[derive(Debug)]
pub struct FlightRing {
    entries_max: usize,
    entries: Mutex<VecDeque<Entry>>,
    ids: AtomicU64,
}

#[pymethods]
impl FlightRing {
    #[new]
    fn new(entries_max: usize) -> FlightRing {
        FlightRing {
            entries_max,
            entries: Mutex::default(),
            ids: AtomicU64::new(0),
        }
    }

    /// Returns the number of the next record.
    pub fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds a record, in place of the oldest if the ring is full.
    fn append(&self, record: Py<PyAny>) {
        self.push(Entry::Record(record));
    }

    /// Removes a record.
    fn remove(&self, record: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut entries = lock(&self.entries);
        let is_it = |entry: &Entry| matches!(entry, Entry::Record(held) if held.is(record));
        let found = entries.iter().rposition(is_it);
        let removed = found.and_then(|at| entries.remove(at));
        drop(entries);
        removed
            .map(drop)
            .ok_or_else(|| PyValueError::new_err("the record is not in the ring"))
    }

    /// Puts a record in the place of the sum with the same number, if the ring still has that.
    fn replace(&self, id: u64, record: Py<PyAny>) {
        let mut entries = lock(&self.entries);
        let replaced = entries
            .iter_mut()
            .rfind(|entry| matches!(entry, Entry::Sum(sum) if sum.id == id))
            .map(|entry| std::mem::replace(entry, Entry::Record(record)));
        drop(entries);
        drop(replaced);
    }

    /// Returns all records. Instead of a record of a sum, returns the arguments of `Record.of_sum`.
    fn records<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        // Copied first: to make objects may run Python code, which must not find the lock taken.
        let copied = |entry: &Entry| entry.copied(py);
        let entries: Vec<Entry> = lock(&self.entries).iter().map(copied).collect();
        let list = PyList::empty(py);
        for entry in entries {
            match entry {
                Entry::Record(record) => list.append(record)?,
                Entry::Sum(sum) => list.append(sum.into_parts())?,
            }
        }
        Ok(list)
    }
}

impl FlightRing {
    /// Adds a sum that is about to begin.
    pub fn begin(&self, sum: Sum) {
        self.push(Entry::Sum(sum));
    }

    /// Marks a sum as complete.
    pub fn complete(&self, id: u64) {
        for entry in lock(&self.entries).iter_mut().rev() {
            if let Entry::Sum(sum) = entry
                && sum.id == id
            {
                sum.completed_ns = now_ns();
                return;
            }
        }
    }

    fn push(&self, entry: Entry) {
        let mut entries = lock(&self.entries);
        let oldest = match entries.len() < self.entries_max {
            true => None,
            false => entries.pop_front(),
        };
        if entries.len() < self.entries_max {
            entries.push_back(entry);
        }
        drop(entries);
        // Dropped without the lock: dropping a record may run Python code.
        drop(oldest);
    }
}

/// Returns the time since 1970.
pub fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| time.as_nanos() as u64)
}

/// A number that threads count up.
#[pyclass(frozen, module = "ringfold._native")]
#[derive(Debug, Default)]
pub struct Counter {
    value: AtomicU64,
}

#[pymethods]
impl Counter {
    #[new]
    fn new() -> Counter {
        Counter::default()
    }

    #[getter]
    fn value(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    /// Counts one more, and returns the number.
    pub fn next(&self) -> u64 {
        self.value.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Counts one less.
    fn retract(&self) {
        self.value.fetch_sub(1, Ordering::Relaxed);
    }
}
