//! The calls of Python's `Communicator` on usual arrays, without Python code.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString, PyTuple};
use pyo3::{Borrowed, intern};
use ringfold::{Collective, Counts, Op, Region, Target};

use crate::communicator::Communicator;
use crate::layout::Kind;
use crate::usual::{Usual, empty_like, usual};
use crate::work::{Promised, Work};

/// The base class of Python's `Communicator`, which makes all calls that are not usual.
#[pyclass(subclass, frozen, module = "ringfold._native")]
#[derive(Debug)]
pub struct Calls {
    native: Py<Communicator>,
    /// The calls collected in each thread's open group.
    groups: Py<PyDict>,
}

/// An argument that was given, or is left at its default.
pub struct Given<'py>(Option<Bound<'py, PyAny>>);

impl<'a, 'py> FromPyObject<'a, 'py> for Given<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Given<'py>> {
        Ok(Given(Some(object.to_owned())))
    }
}

impl Given<'_> {
    /// Returns the operation, if it has a name alone.
    fn operation(&self) -> Option<Op> {
        let Some(given) = &self.0 else {
            return Some(Op::Sum);
        };
        let name = given.cast::<PyString>().ok()?.to_str().ok()?;
        let op = name.parse().ok()?;
        (!matches!(op, Op::PremulSum(_))).then_some(op)
    }
}

#[pymethods]
impl Calls {
    #[new]
    fn new(py: Python<'_>, native: Py<Communicator>) -> Calls {
        Calls {
            native,
            groups: PyDict::new(py).unbind(),
        }
    }

    #[getter]
    fn _native(&self, py: Python<'_>) -> Py<Communicator> {
        self.native.clone_ref(py)
    }

    #[getter]
    fn _groups(&self, py: Python<'_>) -> Py<PyDict> {
        self.groups.clone_ref(py)
    }

    /// Return a new array, the reduction of all `x`; `x` stays unchanged unless `out=x`.
    ///
    /// torch.distributed's `all_reduce` and mpi4py's with `IN_PLACE` store the result in `x`.
    #[pyo3(
        signature = (
            x, op=Given(None), *, out=None, async_=None, timeout=None, algorithm=None,
            reproducible=false
        ),
        text_signature = "($self, x, op='sum', *, out=None, async_=False, timeout=None, \
                          algorithm=None, reproducible=False)"
    )]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn all_reduce<'py>(
        slf: &Bound<'py, Self>,
        x: Bound<'py, PyAny>,
        op: Given<'py>,
        out: Option<Bound<'py, PyAny>>,
        async_: Option<Bound<'py, PyAny>>,
        timeout: Option<Bound<'py, PyAny>>,
        algorithm: Option<Bound<'py, PyAny>>,
        reproducible: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let is_async = match &async_ {
            Some(asked) => asked.is_truthy()?,
            None => false,
        };
        if timeout.is_none()
            && algorithm.is_none()
            && let Some(op) = op.operation()
        {
            let terms = Terms {
                rank: 0,
                tag: 0,
                op,
                reproducible,
                is_async,
            };
            let made = slf
                .get()
                .make(Collective::AllReduce, &x, out.as_ref(), &terms)?;
            if let Some(made) = made {
                return Ok(made);
            }
        }
        let others = PyDict::new(py);
        if let Some(op) = op.0 {
            others.set_item("op", op)?;
        }
        others.set_item("out", out)?;
        others.set_item("async_", is_async)?;
        others.set_item("timeout", timeout)?;
        others.set_item("algorithm", algorithm)?;
        others.set_item("reproducible", reproducible)?;
        slf.call_method(intern!(py, "_all_reduce"), (x,), Some(&others))
    }

    /// Make a call between usual arrays. Return its result, or its handle if it is asynchronous;
    /// None if Python's code makes the call. `others` are arguments, which such a call leaves None
    /// or False.
    #[pyo3(signature = (
        collective, x, out, async_, others, rank=Given(None), tag=Given(None), op=Given(None)
    ))]
    #[allow(clippy::too_many_arguments, reason = "as many as a call has")]
    fn _usual<'py>(
        &self,
        collective: &str,
        x: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        async_: &Bound<'py, PyAny>,
        others: &Bound<'py, PyTuple>,
        rank: Given<'py>,
        tag: Given<'py>,
        op: Given<'py>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let number = |given: Given<'py>| match given.0 {
            None => Some(0),
            Some(given) => given.extract::<u32>().ok(),
        };
        let (Ok(collective), Some(rank), Some(tag), Some(op)) = (
            collective.parse(),
            number(rank),
            number(tag),
            op.operation(),
        ) else {
            return Ok(None);
        };
        for other in others {
            if !other.is_none() && !other.is(&*PyBool::new(x.py(), false)) {
                return Ok(None);
            }
        }
        let terms = Terms {
            rank: rank as usize,
            tag,
            op,
            reproducible: false,
            is_async: async_.is_truthy()?,
        };
        self.make(collective, x, out, &terms)
    }
}

/// The arguments of a call of the usual form, but for its arrays.
struct Terms {
    /// The root or the peer.
    rank: usize,
    tag: u32,
    op: Op,
    reproducible: bool,
    is_async: bool,
}

impl Calls {
    /// Makes a call if `x` and the result are usual arrays; returns the result, or the handle of an
    /// asynchronous call.
    fn make<'py>(
        &self,
        collective: Collective,
        x: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        terms: &Terms,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        use Collective::{AllReduce, Broadcast, Recv, Send};
        let py = x.py();
        let Some(source) = usual(x) else {
            return Ok(None);
        };
        if !self.groups.bind(py).is_empty() {
            return Ok(None);
        }
        let result = match (out, collective) {
            (Some(out), _) => out.clone(),
            (None, Send | Recv) => x.clone(),
            (None, AllReduce | Broadcast) if source.kind == Kind::Buffer => empty_like(x)?,
            _ => return Ok(None),
        };
        let other = match result.is(x) {
            true => None,
            false => Some(usual(&result)),
        };
        let Some(target) = other.as_ref().map_or(Some(&source), Option::as_ref) else {
            return Ok(None);
        };
        let native = self.native.get();
        let Some(request) = request(collective, &source, target, terms, native) else {
            return Ok(None);
        };
        if terms.is_async {
            let array = (collective != Send).then(|| result.clone().unbind());
            let promised = Promised {
                array,
                ..Promised::nothing()
            };
            let work = Work::new(Some(self.native.clone_ref(py).into_any()), promised);
            let held = (x.clone().unbind(), Some(result.unbind()));
            // SAFETY: both arrays are held until the call is complete. The Python caller must not
            // use their memory meanwhile, as with every library that works on arrays without the
            // GIL.
            unsafe { native.launch(py, request, held, &work) }?;
            return Ok(Some(Bound::new(py, work)?.into_any()));
        }
        // SAFETY: as above.
        unsafe { native.carry_out(py, &request) }?;
        Ok(Some(result))
    }
}

/// Returns a call from `x` to `result`, if it is of the usual form.
#[inline]
fn request(
    collective: Collective,
    x: &Usual<'_>,
    result: &Usual<'_>,
    terms: &Terms,
    native: &Communicator,
) -> Option<ringfold::Request> {
    use Collective::{AllGather, AllReduce, AllToAll, Broadcast, Recv, ReduceScatter, Send};
    let (given, made) = (x.count(), result.count());
    // Blocks are parts of axis 0.
    let is_divided = |world_size| {
        x.shape
            .first()
            .is_some_and(|rows| (*rows as usize).is_multiple_of(world_size))
    };
    let (count, is_usual) = match collective {
        AllReduce | Send | Recv | Broadcast => (given, made == given),
        AllGather => (given, made == given * native.world_size()),
        ReduceScatter => {
            let world_size = native.world_size();
            (made, given == made * world_size && is_divided(world_size))
        }
        AllToAll => {
            let world_size = native.world_size();
            (given / world_size, made == given && is_divided(world_size))
        }
        _ => return None,
    };
    let is_written = collective != Send;
    if !is_usual || x.dtype != result.dtype || (is_written && result.is_read_only) {
        return None;
    }
    let is_read = match collective {
        Broadcast => native.rank() == terms.rank,
        _ => collective != Recv,
    };
    let region = |is_used: bool, memory: &Usual<'_>| match is_used {
        true => memory.region(),
        false => Region::EMPTY,
    };
    let (input, output) = (region(is_read, x), region(is_written, result));
    let counts = Counts::Even(count as u64);
    let mut request = ringfold::Request::new(collective, x.dtype, counts, input, output);
    request.target = Target::of(collective, terms.rank);
    (request.op, request.tag) = (terms.op, terms.tag);
    request.options.reproducible = terms.reproducible;
    Some(request)
}
