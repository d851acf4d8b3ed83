//! Symbols that the loader makes unique in a process. GNU compilers mark static variables of inline functions and of
//! templates as unique (`STB_GNU_UNIQUE`). All libraries with such a symbol share the variable of the library that was
//! loaded first, although their other symbols are separate. A second build of a library would then use the values and
//! the layout of the first build. So if an earlier library of functions has brought a unique symbol, the symbol becomes
//! an ordinary symbol in the later library, as with `-fno-gnu-unique`.

use object::Endianness;
use object::elf::{self, Sym64, SymbolInfo};
use object::read::elf::{ElfFile64, Sym};
use std::collections::BTreeSet;
use std::mem::offset_of;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Offset in a symbol of its binding (the upper four bits) and type.
const INFO_AT: usize = offset_of!(Sym64<Endianness>, st_info);

/// Names of unique symbols that libraries of functions have brought into this process.
static BROUGHT: Mutex<BTreeSet<Vec<u8>>> = Mutex::new(BTreeSet::new());

fn loaded_symbols() -> MutexGuard<'static, BTreeSet<Vec<u8>>> {
    BROUGHT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Unique symbols that a library defines, before it is loaded.
pub(super) struct UniqueSymbols {
    /// Names that no earlier library of functions has brought.
    new: Vec<Vec<u8>>,
    /// Copy of the library's bytes in which each unique symbol whose name is not new is an ordinary symbol; `None` if
    /// all names are new.
    pub separated: Option<Vec<u8>>,
}

impl UniqueSymbols {
    /// Finds the unique symbols in the bytes of a library, and records that this library has brought the new names.
    /// Must be called before the library is loaded: another thread may load another build meanwhile.
    pub fn bring(code: &[u8]) -> Result<Self, object::Error> {
        let file = ElfFile64::<Endianness>::parse(code)?;
        let (table, endian) = (file.elf_dynamic_symbol_table(), file.endian());
        let is_unique =
            |symbol: &&Sym64<Endianness>| symbol.st_bind() == elf::STB_GNU_UNIQUE && !symbol.is_undefined(endian);
        let (mut new, mut separated) = (Vec::new(), None);
        for symbol in table.symbols().iter().filter(is_unique) {
            let name = table.symbol_name(endian, symbol)?;
            if loaded_symbols().insert(name.to_vec()) {
                new.push(name.to_vec());
                continue;
            }
            let at = ptr::from_ref(symbol).addr() - code.as_ptr().addr() + INFO_AT;
            let ordinary = SymbolInfo::new(elf::STB_GLOBAL, symbol.st_type());
            separated.get_or_insert_with(|| code.to_vec())[at] = ordinary.0;
        }
        Ok(Self { new, separated })
    }

    /// Must be called after the library is loaded. Forgets the names whose variables belong to another library that the
    /// process had loaded before: later builds share these variables, too. `is_own` says whether the variable of a name
    /// belongs to this library.
    pub fn keep_own(self, is_own: impl Fn(&[u8]) -> bool) {
        for name in self.new.iter().filter(|name| !is_own(name)) {
            loaded_symbols().remove(name);
        }
    }
}
