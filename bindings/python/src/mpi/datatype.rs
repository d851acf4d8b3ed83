//! Datatypes: `MPI.Datatype`, predefined or derived by a program from other datatypes.

use super::element::{ElementType, code_of, of_code, record};
use super::layout::{Distribution, ElementLayout, Part};
use super::packed;
use hotlease_comm::Datatype as Kind;
use pyo3::exceptions::{PyAttributeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::num::NonZeroU32;

const NULL: &str = "MPI_DATATYPE_NULL";
/// Order of the dimensions in memory: the last index changes fastest. The other order is `ORDER_FORTRAN`.
const ORDER_C: i64 = 0;

/// Type of the elements of a buffer.
#[pyclass(frozen, eq, hash, module = "hotlease.MPI", from_py_object)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Datatype {
    element: ElementType,
    name: String,
    code: Option<String>,
}

impl Datatype {
    /// Datatype that is passed to a function of the program.
    pub fn of(kind: Kind) -> Self {
        Self {
            element: kind.into(),
            name: String::new(),
            code: code_of(kind).map(Into::into),
        }
    }

    /// Type of the elements; an error for `MPI.DATATYPE_NULL`.
    pub fn element(&self) -> PyResult<&ElementType> {
        if self.name == NULL {
            return Err(PyTypeError::new_err("MPI.DATATYPE_NULL is no datatype"));
        }
        Ok(&self.element)
    }

    fn derived(kind: Kind, layout: ElementLayout) -> Self {
        Self {
            element: ElementType::derived(kind, layout),
            name: String::new(),
            code: None,
        }
    }

    /// Makes a datatype of blocks of elements of this datatype. Each block has a count of elements, and an offset in
    /// bytes.
    fn of_blocks(&self, blocks: impl IntoIterator<Item = (usize, i64)>) -> PyResult<Self> {
        let element = self.element()?;
        let own = element.layout();
        let parts = blocks.into_iter().map(|(count, offset)| (&*own, count, offset));
        let layout = ElementLayout::of_parts(parts, false).map_err(PyValueError::new_err)?;
        Ok(Self::derived(element.kind, layout))
    }

    /// Converts an offset in elements to bytes.
    fn bytes_of(&self, elements: i64) -> PyResult<i64> {
        let bytes = self.element.extent().checked_mul(elements);
        bytes.ok_or_else(|| PyValueError::new_err(format!("an offset of {elements} elements is too large")))
    }
}

fn check_equal(lengths: &[usize]) -> PyResult<()> {
    if lengths.windows(2).all(|pair| pair[0] == pair[1]) {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "lists of {lengths:?} values that belong together"
    )))
}

#[pymethods]
impl Datatype {
    /// Datatype of this name, for elements of this format (of `struct`, or a numpy code such as "f8").
    #[new]
    #[pyo3(signature = (name, code, size=None))]
    fn new(name: &str, code: &str, size: Option<u32>) -> PyResult<Self> {
        let element = match size {
            Some(size) => record(size as usize),
            None => of_code(code),
        };
        let element = element.ok_or_else(|| PyValueError::new_err(format!("no datatype has the code {code:?}")))?;
        Ok(Self {
            element,
            name: name.into(),
            code: (!code.is_empty()).then(|| code.into()),
        })
    }

    /// Bytes of data of an element.
    fn Get_size(&self) -> usize {
        self.element.size()
    }

    /// Lower bound, and bytes from one element to the next.
    fn Get_extent(&self) -> (i64, i64) {
        let layout = self.element.layout();
        (layout.lower, layout.extent)
    }

    /// Offset of the first byte of data, and bytes from there to the end of the last byte of data.
    fn Get_true_extent(&self) -> (i64, i64) {
        let (low, high) = self.element.layout().true_bounds(1).unwrap_or((0, 0));
        (low, high - low)
    }

    fn Get_name(&self) -> &str {
        &self.name
    }

    /// Datatype with `count` elements of this type in each element. An operator of the program gets such an element
    /// whole.
    fn Create_contiguous(&self, count: u32) -> PyResult<Self> {
        let made = self.of_blocks([(count as usize, 0)])?;
        let size = u32::try_from(made.element.size()).ok().and_then(NonZeroU32::new);
        Ok(match size {
            Some(size) if count > 1 => Self::derived(Kind::Record(size), made.element.layout().into_owned()),
            _ => made,
        })
    }

    /// Datatype for `count` blocks of elements, whose beginnings are `stride` elements apart.
    fn Create_vector(&self, count: u32, blocklength: usize, stride: i64) -> PyResult<Self> {
        self.Create_hvector(count, blocklength, self.bytes_of(stride)?)
    }

    /// Datatype for `count` blocks of elements, whose beginnings are `stride` bytes apart.
    fn Create_hvector(&self, count: u32, blocklength: usize, stride: i64) -> PyResult<Self> {
        let place = |index: u32| {
            let offset = i64::from(index).checked_mul(stride);
            offset.ok_or_else(|| PyValueError::new_err(format!("{count} blocks that are {stride} bytes apart")))
        };
        // The last place is the farthest, so its check is enough for all places.
        place(count.saturating_sub(1))?;
        self.of_blocks((0..count).map(|index| (blocklength, i64::from(index) * stride)))
    }

    /// Datatype for blocks of elements, at offsets in elements.
    fn Create_indexed(&self, blocklengths: Vec<usize>, displacements: Vec<i64>) -> PyResult<Self> {
        let offsets = displacements.into_iter().map(|place| self.bytes_of(place));
        self.Create_hindexed(blocklengths, offsets.collect::<PyResult<_>>()?)
    }

    /// Datatype for blocks of elements, at offsets in bytes.
    fn Create_hindexed(&self, blocklengths: Vec<usize>, displacements: Vec<i64>) -> PyResult<Self> {
        check_equal(&[blocklengths.len(), displacements.len()])?;
        self.of_blocks(blocklengths.into_iter().zip(displacements))
    }

    /// Datatype for blocks of one length, at offsets in elements.
    fn Create_indexed_block(&self, blocklength: usize, displacements: Vec<i64>) -> PyResult<Self> {
        self.Create_indexed(vec![blocklength; displacements.len()], displacements)
    }

    /// Datatype for blocks of one length, at offsets in bytes.
    fn Create_hindexed_block(&self, blocklength: usize, displacements: Vec<i64>) -> PyResult<Self> {
        self.Create_hindexed(vec![blocklength; displacements.len()], displacements)
    }

    /// Datatype for blocks of elements of several types, at offsets in bytes.
    #[staticmethod]
    fn Create_struct(
        blocklengths: Vec<usize>,
        displacements: Vec<i64>,
        datatypes: Vec<Bound<'_, Self>>,
    ) -> PyResult<Self> {
        check_equal(&[blocklengths.len(), displacements.len(), datatypes.len()])?;
        let elements = datatypes.iter().map(|datatype| datatype.get().element());
        let elements = elements.collect::<PyResult<Vec<_>>>()?;
        let layouts: Vec<_> = elements.iter().map(|element| element.layout()).collect();
        let parts = layouts.iter().zip(blocklengths).zip(displacements);
        let parts = parts.map(|((layout, count), offset)| -> Part<'_> { (layout, count, offset) });
        let layout = ElementLayout::of_parts(parts, true).map_err(PyValueError::new_err)?;
        let kind = elements.first().map_or(Kind::Bytes, |first| first.kind);
        let is_one = elements.iter().all(|element| element.kind == kind);
        Ok(Self::derived(if is_one { kind } else { Kind::Bytes }, layout))
    }

    /// Datatype for a part of an array; elements of the array are of this type.
    #[pyo3(signature = (sizes, subsizes, starts, order=ORDER_C))]
    fn Create_subarray(
        &self,
        mut sizes: Vec<usize>,
        mut subsizes: Vec<usize>,
        mut starts: Vec<usize>,
        order: i64,
    ) -> PyResult<Self> {
        check_equal(&[sizes.len(), subsizes.len(), starts.len()])?;
        let is_inside = |((size, part), start): ((&usize, &usize), &usize)| {
            start.checked_add(*part).is_some_and(|end| end <= *size)
        };
        if sizes.is_empty() || !sizes.iter().zip(&subsizes).zip(&starts).all(is_inside) {
            return Err(PyValueError::new_err(format!(
                "a part of {subsizes:?} from {starts:?} on is not inside an array of {sizes:?}"
            )));
        }
        if order == ORDER_C {
            [&mut sizes, &mut subsizes, &mut starts]
                .into_iter()
                .for_each(|list| list.reverse());
        }
        // The innermost dimension, whose elements are neighbours, comes first.
        let extent = self.element()?.extent();
        let mut part = self.of_blocks([(1, 0)])?;
        let (mut stride, mut offset) = (extent, 0);
        let too_large = || PyValueError::new_err(format!("an array of {sizes:?} is too large"));
        for ((size, length), start) in sizes.iter().zip(&subsizes).zip(&starts) {
            // No index or start is larger than the size, so their products with the stride fit as well.
            let next = i64::try_from(*size).ok().and_then(|size| stride.checked_mul(size));
            let next = next.ok_or_else(too_large)?;
            part = part.Create_resized(0, stride)?.of_blocks([(*length, 0)])?;
            offset += *start as i64 * stride;
            stride = next;
        }
        let moved = part.of_blocks([(1, offset)])?;
        moved.Create_resized(0, stride)
    }

    /// Datatype for the part of an array that one of `size` processes has. The array has the shape `gsizes`, and is
    /// distributed over a grid of processes of the shape `psizes`.
    #[pyo3(signature = (size, rank, gsizes, distribs, dargs, psizes, order=ORDER_C))]
    #[allow(clippy::too_many_arguments, reason = "those of MPI")]
    fn Create_darray(
        &self,
        size: usize,
        rank: usize,
        gsizes: Vec<usize>,
        distribs: Vec<i64>,
        dargs: Vec<i64>,
        psizes: Vec<usize>,
        order: i64,
    ) -> PyResult<Self> {
        check_equal(&[gsizes.len(), distribs.len(), dargs.len(), psizes.len()])?;
        let processes = psizes.iter().try_fold(1, |all: usize, each| all.checked_mul(*each));
        if gsizes.is_empty() || processes != Some(size) || rank >= size {
            return Err(PyValueError::new_err(format!(
                "rank {rank} of {size} processes in a grid of {psizes:?}"
            )));
        }
        // The last dimension of the grid changes fastest, with both orders in memory.
        let (mut dimensions, mut rest) = (Vec::new(), rank);
        for at in (0..gsizes.len()).rev() {
            let place = rest % psizes[at];
            rest /= psizes[at];
            let made = Distribution::new(distribs[at], dargs[at], gsizes[at], psizes[at], place);
            dimensions.push((gsizes[at], made.map_err(PyValueError::new_err)?));
        }
        if order != ORDER_C {
            dimensions.reverse();
        }
        let too_large = || PyValueError::new_err(format!("an array of {gsizes:?} is too large"));
        let mut part = self.of_blocks([(1, 0)])?;
        let mut stride = self.element()?.extent();
        for (size, distribution) in dimensions {
            let next = i64::try_from(size).ok().and_then(|size| stride.checked_mul(size));
            let next = next.ok_or_else(too_large)?;
            let blocks = distribution.blocks();
            let element = part.Create_resized(0, stride)?;
            part = element.of_blocks(blocks.map(|(start, length)| (length, start as i64 * stride)))?;
            stride = next;
        }
        part.Create_resized(0, stride)
    }

    /// Datatype for the same elements with other bounds.
    fn Create_resized(&self, lb: i64, extent: i64) -> PyResult<Self> {
        let element = self.element()?;
        Ok(Self::derived(element.kind, element.layout().resized(lb, extent)))
    }

    fn Dup(&self) -> PyResult<Self> {
        let name = String::new();
        self.element().map(|_| Self { name, ..self.clone() })
    }

    /// Does nothing, because a datatype is ready when it is made. Exists for programs that call it.
    fn Commit<'py>(slf: Bound<'py, Self>) -> Bound<'py, Self> {
        slf
    }

    fn Free(&self) {}

    /// Packs elements into a buffer, from `position` on; returns the position of their end.
    #[pyo3(signature = (inbuf, outbuf, position, comm=None))]
    fn Pack(
        &self,
        inbuf: &Bound<'_, PyAny>,
        outbuf: &Bound<'_, PyAny>,
        position: usize,
        comm: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let _ = comm;
        packed::pack(self.element()?, inbuf, outbuf, position)
    }

    /// Unpacks elements from a buffer, from `position` on; returns the position of their end.
    #[pyo3(signature = (inbuf, position, outbuf, comm=None))]
    fn Unpack(
        &self,
        inbuf: &Bound<'_, PyAny>,
        position: usize,
        outbuf: &Bound<'_, PyAny>,
        comm: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let _ = comm;
        packed::unpack(self.element()?, inbuf, position, outbuf)
    }

    /// Bytes that `count` elements take when they are packed.
    #[pyo3(signature = (count, comm=None))]
    fn Pack_size(&self, count: usize, comm: Option<&Bound<'_, PyAny>>) -> usize {
        let _ = comm;
        count.saturating_mul(self.element.size())
    }

    /// Offsets and lengths of the runs of bytes that make up `count` elements, from an offset on.
    fn _runs(&self, count: usize, offset: i64) -> PyResult<Vec<(usize, usize)>> {
        let layout = self.element()?.layout();
        packed::check_bounds(&layout, count, offset, usize::MAX, "these elements")?;
        let runs = layout.runs(count, offset);
        Ok(runs.map(|run| (run.start, run.len())).collect())
    }

    #[getter]
    fn size(&self) -> usize {
        self.element.size()
    }

    #[getter]
    fn extent(&self) -> i64 {
        self.element.extent()
    }

    #[getter]
    fn lb(&self) -> i64 {
        self.element.layout().lower
    }

    #[getter]
    fn ub(&self) -> i64 {
        self.element.layout().upper()
    }

    #[getter]
    fn true_lb(&self) -> i64 {
        self.Get_true_extent().0
    }

    #[getter]
    fn true_extent(&self) -> i64 {
        self.Get_true_extent().1
    }

    #[getter]
    fn true_ub(&self) -> i64 {
        let (lower, extent) = self.Get_true_extent();
        lower + extent
    }

    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    #[getter]
    fn is_predefined(&self) -> bool {
        !self.name.is_empty()
    }

    #[getter]
    fn is_named(&self) -> bool {
        self.is_predefined()
    }

    /// Code of the type in `struct` and numpy.
    fn tocode(&self) -> PyResult<&str> {
        self.code
            .as_deref()
            .ok_or_else(|| PyValueError::new_err("this datatype has no code"))
    }

    #[staticmethod]
    fn fromcode(code: &str) -> PyResult<Self> {
        Self::new("", code, None)
    }

    #[getter]
    fn typechar(&self) -> Option<&str> {
        self.code.as_deref()
    }

    fn __bool__(&self) -> bool {
        self.name != NULL
    }

    fn __getattr__(&self, name: &str) -> PyResult<()> {
        Err(PyAttributeError::new_err(if name.starts_with("Create_") {
            format!("hotlease has no Datatype.{name}: use Create_subarray, Create_struct, Create_hindexed")
        } else {
            format!("'Datatype' has no attribute {name:?}")
        }))
    }

    fn __repr__(&self) -> String {
        match self.name.as_str() {
            "" => format!("MPI.Datatype({})", self.element.kind),
            name => name.replacen('_', ".", 1),
        }
    }
}
