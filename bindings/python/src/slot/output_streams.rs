//! Output and log records of this process, from all threads, until the next reply carries them. They are added under
//! the GIL.

use crate::locks::locked;
use crate::plain;
use crate::task_output::{RECORD_BYTES_MAX, TaskOutput};
use hotlease_wire::python::END_OF_TASK;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PyString, PyTuple};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread::ThreadId;

/// Limits of the unfinished lines that are held back: number, and bytes of each.
const OPEN_MAX: usize = 64;
const OPEN_BYTES_MAX: usize = 8 << 10;

/// Whether there may be output. Checked first, so that a task without output costs one load.
static IS_ANY: AtomicBool = AtomicBool::new(false);
static PRINTING: Mutex<OutputCollector> = Mutex::new(OutputCollector {
    printed: TaskOutput::new(),
    open: Vec::new(),
});

/// An unfinished line of one thread.
struct OpenLine {
    thread: ThreadId,
    stream: u8,
    text: Vec<u8>,
    /// Bytes of the text that were written to the stream already.
    written: usize,
}

struct OutputCollector {
    printed: TaskOutput,
    /// Unfinished lines, held back so that lines of several threads stay whole.
    open: Vec<OpenLine>,
}

fn printing() -> MutexGuard<'static, OutputCollector> {
    IS_ANY.store(true, Ordering::Relaxed);
    locked(&PRINTING)
}

/// Whether there is output since the last reply.
#[inline]
pub fn is_any() -> bool {
    IS_ANY.load(Ordering::Relaxed)
}

/// Upper bound of the bytes of the output at the end of a task.
pub fn bytes() -> usize {
    if !is_any() {
        return 0;
    }
    let mut printing = printing();
    printing.end_lines();
    printing.printed.bytes()
}

/// The pipe to the agent, which keeps this process's output. It is a duplicate, because a task may replace the original
/// descriptor.
static AGENT_S_PIPE: OnceLock<OwnedFd> = OnceLock::new();

/// Duplicates the descriptor of the process's output.
pub fn note_pipe() {
    // Without the duplicate, a worker's death is reported with the output of earlier tasks, too.
    if let Ok(pipe) = std::io::stdout().as_fd().try_clone_to_owned() {
        let _ = AGENT_S_PIPE.set(pipe);
    }
}

/// Marks the end of a task that had output.
#[cold]
pub fn mark_end() {
    if let Some(pipe) = AGENT_S_PIPE.get() {
        // SAFETY: constant bytes, and a descriptor that stays open. A write of so few bytes to a pipe is whole or
        // fails.
        unsafe { libc::write(pipe.as_raw_fd(), END_OF_TASK.as_ptr().cast(), END_OF_TASK.len()) };
    }
}

/// Takes the output, in the encoding that follows a reply.
pub fn take() -> Vec<u8> {
    let taken = printing().take();
    IS_ANY.store(false, Ordering::Relaxed);
    taken
}

/// Sets the function's name for the output. If hotlease's own function calls a function of the program, the name of the
/// program's function is set.
#[cold]
pub fn name(function: &Bound<'_, PyAny>, arguments: &Bound<'_, PyTuple>) {
    let named = function.py().import("hotlease._printing");
    let named = named.and_then(|module| module.call_method1("name", (function, arguments)));
    // Otherwise output carries the name of hotlease's own function.
    if let Ok(Ok(Some(name))) = named.map(|name| name.extract::<Option<String>>()) {
        printing().printed.name(name);
    }
}

/// Adds a log record. Returns `False` if it is not of plain values, or too large.
#[pyfunction]
pub fn _logged(record: &Bound<'_, PyTuple>) -> bool {
    let mut bytes = Vec::with_capacity(256);
    let fits = plain::encode(record, &mut bytes, RECORD_BYTES_MAX);
    if fits {
        printing().printed.record(&bytes);
    }
    fits
}

/// Layer between a text stream of this process and its file: each written line goes to the next reply and to the file.
#[pyclass(frozen, module = "hotlease._core")]
pub struct Tee {
    stream: u8,
    file: Py<PyAny>,
}

#[pymethods]
impl Tee {
    /// Tee for standard output (1) or standard error (2).
    #[new]
    fn new(stream: u8, file: Py<PyAny>) -> Self {
        Self { stream, file }
    }

    fn write(&self, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let py = data.py();
        let copied;
        let bytes = match data.cast::<PyBytes>() {
            Ok(bytes) => bytes,
            Err(_) => {
                copied = PyMemoryView::from(data)?.call_method0("tobytes")?;
                copied.cast::<PyBytes>()?
            }
        };
        let bytes = bytes.as_bytes();
        if !bytes.is_empty() {
            let lines = printing().write(self.stream, bytes);
            self.pass_on(py, &lines)?;
        }
        Ok(bytes.len())
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        if is_any() {
            let begun = printing().flush(self.stream);
            self.pass_on(py, &begun)?;
        }
        self.file.call_method0(py, intern!(py, "flush")).map(drop)
    }

    /// Delegates all other attributes to the file.
    fn __getattr__<'py>(&self, name: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
        self.file.bind(name.py()).getattr(name)
    }
}

impl Tee {
    fn pass_on(&self, py: Python<'_>, text: &[u8]) -> PyResult<()> {
        if text.is_empty() {
            return Ok(());
        }
        let text = PyBytes::new(py, text);
        self.file.call_method1(py, intern!(py, "write"), (text,)).map(drop)
    }
}

impl OutputCollector {
    /// Adds text to the current line, or several lines. Returns the text that goes to the stream's file now.
    fn write(&mut self, stream: u8, text: &[u8]) -> Vec<u8> {
        let mut line = self.mine(stream).map_or_else(
            || OpenLine {
                thread: std::thread::current().id(),
                stream,
                text: Vec::new(),
                written: 0,
            },
            |at| self.open.remove(at),
        );
        let before = line.text.len();
        line.text.extend_from_slice(text);
        let end = match text.iter().rposition(|byte| *byte == b'\n') {
            _ if line.text.len() > OPEN_BYTES_MAX => line.text.len(),
            Some(at) => before + at + 1,
            None => {
                self.open.push(line);
                if self.open.len() > OPEN_MAX {
                    let first = self.open.remove(0);
                    self.printed.text(first.stream, &first.text);
                }
                return Vec::new();
            }
        };
        let text = line.text.split_off(end);
        self.printed.text(stream, &line.text);
        let lines = line.text.split_off(line.written);
        if !text.is_empty() {
            self.open.push(OpenLine {
                text,
                written: 0,
                ..line
            });
        }
        lines
    }

    /// Returns the part of this thread's unfinished line that was not written to the stream's file yet.
    fn flush(&mut self, stream: u8) -> Vec<u8> {
        let Some(at) = self.mine(stream) else {
            return Vec::new();
        };
        let line = &mut self.open[at];
        let begun = line.text[line.written..].to_vec();
        line.written = line.text.len();
        begun
    }

    fn mine(&self, stream: u8) -> Option<usize> {
        let me = std::thread::current().id();
        let is_mine = |line: &OpenLine| line.thread == me && line.stream == stream;
        self.open.iter().position(is_mine)
    }

    fn take(&mut self) -> Vec<u8> {
        self.end_lines();
        self.printed.take()
    }

    fn end_lines(&mut self) {
        for line in self.open.drain(..) {
            self.printed.text(line.stream, &line.text);
        }
    }
}
