//! Functions of a shared library, listed from its bytes without running anything.
//!
//! Client, agent and worker all call [`functions`] on the same bytes and so agree on the index of every name: the
//! position among the sorted exported functions.
//!
//! A function has the plain interface (as in the rFaaS papers) unless the library also exports a data symbol
//! `hotlease_context_NAME`; it may be run again after a failure only if there is a data symbol
//! `hotlease_idempotent_NAME`. The functions `hotlease_state_save_NAME` and `hotlease_state_restore_NAME` cannot be
//! invoked: they save and restore the state that functions leave behind, in a format that the author calls NAME. The
//! macros of `hotlease/function.h` make all these symbols.

use crate::limits::{CODE_BYTES_MAX, FUNCTION_NAME_BYTES_MAX, FUNCTIONS_MAX};
use object::Endianness;
use object::elf;
use object::read::elf::{ElfFile64, FileHeader, SectionHeader, Sym};
use std::collections::BTreeMap;

const CONTEXT_PREFIX: &str = "hotlease_context_";
const IDEMPOTENT_PREFIX: &str = "hotlease_idempotent_";
/// Prefix of the function that saves a state; the rest of its name is the format of the state's bytes.
pub const STATE_SAVE_PREFIX: &str = "hotlease_state_save_";
/// Prefix of the function that restores a state.
pub const STATE_RESTORE_PREFIX: &str = "hotlease_state_restore_";

/// Calling convention of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interface {
    /// `uint32_t f(const void* in, uint32_t size, void* out)`.
    Plain,
    /// `int32_t f(hotlease_context*, const void* in, uint64_t size, void* out, uint64_t capacity,
    /// uint64_t* produced)`.
    Context,
}

/// One exported function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportedFunction {
    /// Name of its symbol.
    pub name: String,
    /// Calling convention.
    pub interface: Interface,
    /// Whether running the function twice does no harm.
    pub idempotent: bool,
}

/// Exports of a library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exports {
    /// Functions that can be invoked, sorted by name.
    pub functions: Vec<ExportedFunction>,
    /// Format in which the library saves and restores the state of its functions; `None` if it does not.
    pub state: Option<String>,
}

/// Reason why bytes are not a usable function library.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodeError {
    /// The library is too large.
    #[error("{size} bytes are over the limit of {CODE_BYTES_MAX}")]
    TooLarge {
        /// Size of the library.
        size: u64,
    },
    /// The file is no 64-bit ELF file.
    #[error("not a 64-bit ELF shared library (build it with `cc -shared -fPIC`)")]
    NotElf,
    /// The file is an ELF file, but a program or an object file.
    #[error("an ELF file, but not a shared library (build it with `cc -shared -fPIC`)")]
    NotShared,
    /// The library is for another processor.
    #[error("built for another processor (ELF machine {machine})")]
    Machine {
        /// ELF `e_machine`.
        machine: u16,
    },
    /// The file is damaged.
    #[error("damaged ELF file: {why}")]
    Damaged {
        /// Kind of the damage.
        why: String,
    },
    /// The library exports no function.
    #[error("exports no function (declare it `extern \"C\"` with default visibility)")]
    NoFunctions,
    /// The library exports too many functions.
    #[error("exports more than {FUNCTIONS_MAX} functions (build with -fvisibility=hidden and export only yours)")]
    TooManyFunctions,
    /// The functions that save and restore its state are not one pair.
    #[error(
        "declares HOTLEASE_STATE_SAVE({}) and HOTLEASE_STATE_RESTORE({}): declare one of each, with the same name",
        save.join(", "), restore.join(", ")
    )]
    State {
        /// Format names of the save functions, at most two.
        save: Vec<String>,
        /// Format names of the restore functions, at most two.
        restore: Vec<String>,
    },
}

impl CodeError {
    fn damaged(why: impl ToString) -> Self {
        Self::Damaged { why: why.to_string() }
    }
}

/// Largest number of dynamic symbols of a library, exported or not: limits the time that listing a library takes.
const SYMBOLS_MAX: usize = 1 << 20;

const MACHINE: elf::Machine = if cfg!(target_arch = "x86_64") {
    elf::EM_X86_64
} else {
    elf::EM_AARCH64
};

/// The exported functions of a shared library, sorted by name; total on any bytes.
pub fn functions(code: &[u8]) -> Result<Vec<ExportedFunction>, CodeError> {
    exports(code).map(|exports| exports.functions)
}

/// The exports of a shared library; total on any bytes.
pub fn exports(code: &[u8]) -> Result<Exports, CodeError> {
    if code.len() as u64 > CODE_BYTES_MAX {
        return Err(CodeError::TooLarge {
            size: code.len() as u64,
        });
    }
    let header = elf::FileHeader64::<Endianness>::parse(code).map_err(|_| CodeError::NotElf)?;
    let endian = header.endian().map_err(|_| CodeError::NotElf)?;
    if header.e_type.get(endian) != elf::ET_DYN {
        return Err(CodeError::NotShared);
    }
    let machine = header.e_machine.get(endian);
    if machine != MACHINE {
        return Err(CodeError::Machine { machine: machine.0 });
    }
    let file = ElfFile64::<Endianness>::parse(code).map_err(CodeError::damaged)?;
    let table = file.elf_dynamic_symbol_table();
    if table.len() > SYMBOLS_MAX {
        return Err(CodeError::damaged("more than a million dynamic symbols"));
    }
    if table.is_empty() {
        return Err(CodeError::NoFunctions);
    }
    let strings = file
        .elf_section_table()
        .section(table.string_section())
        .and_then(|section| section.data(endian, code))
        .map_err(CodeError::damaged)?;

    let mut exported: BTreeMap<&str, ExportedFunction> = BTreeMap::new();
    let mut markers = Vec::new();
    let (mut save, mut restore) = (StateFormats::default(), StateFormats::default());
    for symbol in table.iter() {
        let global =
            matches!(symbol.st_bind(), elf::STB_GLOBAL | elf::STB_WEAK) && symbol.st_visibility() != elf::STV_HIDDEN;
        let data = symbol.st_type() == elf::STT_OBJECT;
        let text = matches!(symbol.st_type(), elf::STT_FUNC | elf::STT_GNU_IFUNC);
        if !global || symbol.is_undefined(endian) || !(text || data) {
            continue;
        }
        let Some(name) = name_at(strings, symbol.st_name(endian))? else {
            continue;
        };
        if data {
            if name.starts_with(CONTEXT_PREFIX) || name.starts_with(IDEMPOTENT_PREFIX) {
                markers.push(name);
            }
        } else if let Some(format) = name.strip_prefix(STATE_SAVE_PREFIX) {
            save.add(format);
        } else if let Some(format) = name.strip_prefix(STATE_RESTORE_PREFIX) {
            restore.add(format);
        } else if !is_runtime(name) {
            let function = ExportedFunction {
                name: name.to_owned(),
                interface: Interface::Plain,
                idempotent: false,
            };
            exported.insert(name, function);
        }
        if exported.len() > FUNCTIONS_MAX || markers.len() > 2 * FUNCTIONS_MAX {
            return Err(CodeError::TooManyFunctions);
        }
    }
    for marker in markers {
        if let Some(function) = marker
            .strip_prefix(CONTEXT_PREFIX)
            .and_then(|name| exported.get_mut(name))
        {
            function.interface = Interface::Context;
        }
        if let Some(function) = marker
            .strip_prefix(IDEMPOTENT_PREFIX)
            .and_then(|name| exported.get_mut(name))
        {
            function.idempotent = true;
        }
    }
    if exported.is_empty() {
        return Err(CodeError::NoFunctions);
    }
    Ok(Exports {
        functions: exported.into_values().collect(),
        state: state_format(save, restore)?,
    })
}

/// Format names of the save functions, or of the restore functions. Two are an error already, so no more are kept.
#[derive(Default)]
struct StateFormats(Vec<String>);

impl StateFormats {
    fn add(&mut self, format: &str) {
        if self.0.len() < 2 {
            self.0.push(format.to_owned());
        }
    }
}

/// The format that one function saves and another restores; `None` if there are no such functions.
fn state_format(
    StateFormats(save): StateFormats,
    StateFormats(restore): StateFormats,
) -> Result<Option<String>, CodeError> {
    match (&save[..], &restore[..]) {
        ([], []) => Ok(None),
        ([saved], [restored]) if saved == restored && !saved.is_empty() => Ok(Some(saved.clone())),
        _ => Err(CodeError::State { save, restore }),
    }
}

/// The string at `offset`; `None` if it is longer than any name that hotlease accepts. Reads no further than that
/// length: a hostile table can have millions of symbols share one name of many megabytes.
fn name_at(strings: &[u8], offset: u32) -> Result<Option<&str>, CodeError> {
    let rest = strings
        .get(offset as usize..)
        .ok_or_else(|| CodeError::damaged("symbol name"))?;
    let window = &rest[..rest.len().min(FUNCTION_NAME_BYTES_MAX + 1)];
    match window.iter().position(|byte| *byte == 0) {
        Some(length) => std::str::from_utf8(&window[..length])
            .map(Some)
            .map_err(CodeError::damaged),
        None if window.len() > FUNCTION_NAME_BYTES_MAX => Ok(None),
        None => Err(CodeError::damaged("symbol name")),
    }
}

/// Start-up code that linkers export from every library.
fn is_runtime(name: &str) -> bool {
    matches!(name, "_init" | "_fini")
}
