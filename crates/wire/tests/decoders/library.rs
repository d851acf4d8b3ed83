//! Writer of the smallest shared libraries with a symbol table: the same bytes on every machine.

const HEADER_BYTES: usize = 64;
const SECTION_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;
const SECTION_NAMES: &[u8] = b"\0.dynsym\0.dynstr\0.shstrtab\0";

const STT_OBJECT: u8 = 1;
const STT_FUNC: u8 = 2;
const STB_GLOBAL: u8 = 1;

/// A dynamic symbol.
pub struct Symbol {
    /// Name of the symbol.
    pub name: Vec<u8>,
    kind: u8,
    /// Offset of the name in the string table, if the writer is not to choose it.
    pub name_offset: Option<u32>,
    section: u16,
}

impl Symbol {
    /// An exported function.
    pub fn function(name: &str) -> Self {
        Self {
            name: name.into(),
            kind: STT_FUNC,
            name_offset: None,
            section: 1,
        }
    }
    /// An exported variable.
    pub fn data(name: &str) -> Self {
        Self {
            kind: STT_OBJECT,
            ..Self::function(name)
        }
    }
    /// An undefined function, which another library must provide.
    pub fn undefined(name: &str) -> Self {
        Self {
            section: 0,
            ..Self::function(name)
        }
    }
}

/// An ELF shared library for this machine with these dynamic symbols and no code.
pub fn library(symbols: &[Symbol]) -> Vec<u8> {
    let mut strings = vec![0];
    let mut table = vec![0; SYMBOL_BYTES];
    for symbol in symbols {
        let offset = symbol.name_offset.unwrap_or(strings.len() as u32);
        table.extend(offset.to_le_bytes());
        table.extend([STB_GLOBAL << 4 | symbol.kind, 0]);
        table.extend(symbol.section.to_le_bytes());
        table.extend(0x1000_u64.to_le_bytes()); // value
        table.extend(16_u64.to_le_bytes()); // size
        strings.extend(&symbol.name);
        strings.push(0);
    }
    let strings_at = HEADER_BYTES + table.len();
    let names_at = strings_at + strings.len();
    let sections_at = (names_at + SECTION_NAMES.len()).next_multiple_of(8);

    let mut file = header(sections_at);
    file.extend(&table);
    file.extend(&strings);
    file.extend(SECTION_NAMES);
    file.resize(sections_at + SECTION_BYTES, 0); // and the null section
    // name, type (dynsym, strtab), offset, size, link, first global symbol, entry size
    file.extend(section(1, 11, HEADER_BYTES, table.len(), 2, 1, SYMBOL_BYTES));
    file.extend(section(9, 3, strings_at, strings.len(), 0, 0, 0));
    file.extend(section(17, 3, names_at, SECTION_NAMES.len(), 0, 0, 0));
    file
}

fn header(sections_at: usize) -> Vec<u8> {
    let machine: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    header.extend(3_u16.to_le_bytes()); // ET_DYN
    header.extend(machine.to_le_bytes());
    header.extend(1_u32.to_le_bytes());
    header.extend([0; 16]); // entry point, program headers
    header.extend((sections_at as u64).to_le_bytes());
    header.extend([0; 4]); // flags
    for half in [HEADER_BYTES, 56, 0, SECTION_BYTES, 4, 3] {
        header.extend((half as u16).to_le_bytes());
    }
    header
}

fn section(name: u32, kind: u32, offset: usize, size: usize, link: u32, info: u32, entry_bytes: usize) -> Vec<u8> {
    let mut section = Vec::with_capacity(SECTION_BYTES);
    section.extend(name.to_le_bytes());
    section.extend(kind.to_le_bytes());
    section.extend([0; 16]); // flags, address
    section.extend((offset as u64).to_le_bytes());
    section.extend((size as u64).to_le_bytes());
    section.extend(link.to_le_bytes());
    section.extend(info.to_le_bytes());
    section.extend(8_u64.to_le_bytes()); // alignment
    section.extend((entry_bytes as u64).to_le_bytes());
    section
}
