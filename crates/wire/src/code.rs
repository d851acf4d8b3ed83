//! Which functions a shared library offers, read from its bytes without running anything.
//!
//! Client, agent and worker all call [`functions`] on the same bytes and so agree on the index of every
//! name: the position among the sorted exported functions (DESIGN section 4).
//!
//! A function has the plain interface of the papers unless the library also exports a data symbol
//! `hotlease_context_NAME`; it may be run again after a failure only if there is a data symbol
//! `hotlease_idempotent_NAME`. The macros of `hotlease/function.h` make these.

use crate::limits::{CODE_BYTES_MAX, FUNCTION_NAME_BYTES_MAX, FUNCTIONS_MAX};
use object::elf;
use object::read::elf::{ElfFile64, FileHeader};
use object::{Endianness, Object, ObjectSymbol, SymbolKind};
use std::collections::BTreeMap;

const CONTEXT_PREFIX: &str = "hotlease_context_";
const IDEMPOTENT_PREFIX: &str = "hotlease_idempotent_";

/// How a function is called.
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
pub struct Function {
    /// Its symbol.
    pub name: String,
    /// How it is called.
    pub interface: Interface,
    /// Whether running it twice does no harm.
    pub idempotent: bool,
}

/// Why bytes are not a usable function library.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodeError {
    /// Too large.
    #[error("{size} bytes are over the limit of {CODE_BYTES_MAX}")]
    TooLarge {
        /// Its size.
        size: u64,
    },
    /// Not a 64-bit ELF file.
    #[error("not a 64-bit ELF shared library (build it with `cc -shared -fPIC`)")]
    NotElf,
    /// An ELF file, but a program or an object file.
    #[error("an ELF file, but not a shared library (build it with `cc -shared -fPIC`)")]
    NotShared,
    /// For another machine.
    #[error("built for another processor (ELF machine {machine})")]
    Machine {
        /// ELF `e_machine`.
        machine: u16,
    },
    /// Damaged.
    #[error("damaged ELF file: {why}")]
    Damaged {
        /// What.
        why: String,
    },
    /// Nothing exported.
    #[error("exports no function (declare it `extern \"C\"` with default visibility)")]
    NoFunctions,
    /// Too much exported.
    #[error(
        "exports more than {FUNCTIONS_MAX} functions (build with -fvisibility=hidden and export only yours)"
    )]
    TooManyFunctions,
}

const MACHINE: elf::Machine = if cfg!(target_arch = "x86_64") {
    elf::EM_X86_64
} else {
    elf::EM_AARCH64
};

/// The exported functions of a shared library, sorted by name; total on any bytes.
pub fn functions(code: &[u8]) -> Result<Vec<Function>, CodeError> {
    if code.len() as u64 > CODE_BYTES_MAX {
        return Err(CodeError::TooLarge {
            size: code.len() as u64,
        });
    }
    let damaged = |error: object::Error| CodeError::Damaged {
        why: error.to_string(),
    };
    let header = elf::FileHeader64::<Endianness>::parse(code).map_err(|_| CodeError::NotElf)?;
    let endian = header.endian().map_err(|_| CodeError::NotElf)?;
    if header.e_type.get(endian) != elf::ET_DYN {
        return Err(CodeError::NotShared);
    }
    let machine = header.e_machine.get(endian);
    if machine != MACHINE {
        return Err(CodeError::Machine { machine: machine.0 });
    }
    let file = ElfFile64::<Endianness>::parse(code).map_err(damaged)?;

    let mut exported: BTreeMap<&str, Function> = BTreeMap::new();
    let mut markers = Vec::new();
    for symbol in file.dynamic_symbols().filter(|symbol| symbol.is_definition()) {
        let name = symbol.name().map_err(damaged)?;
        match symbol.kind() {
            SymbolKind::Text if symbol.is_global() && !is_runtime(name) => {
                if name.len() <= FUNCTION_NAME_BYTES_MAX {
                    let function = Function {
                        name: name.to_owned(),
                        interface: Interface::Plain,
                        idempotent: false,
                    };
                    exported.insert(name, function);
                }
            }
            SymbolKind::Data => markers.push(name),
            _ => {}
        }
        if exported.len() > FUNCTIONS_MAX {
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
    Ok(exported.into_values().collect())
}

/// Start-up code that linkers export from every library.
fn is_runtime(name: &str) -> bool {
    matches!(name, "_init" | "_fini")
}
