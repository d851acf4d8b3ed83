//! Check of a pickle from a sandbox, before it is unpickled.
//!
//! A pickle is a program of a stack machine, which may call any function that it names. This check walks over the
//! program. For each value of the machine it records what may be done with the value. A program that passes
//!
//! - consists of the operations by which Python's own pickler writes protocols 4 and 5;
//! - names only objects that its receiver admits, and calls, fills or changes only objects admitted for that use;
//! - changes objects that it has made, and never a class;
//! - uses memory and hashes keys in proportion to its length, and has no keys whose hash exhausts the C stack;
//! - nests objects of C code no deeper than that code can free, because it frees them by recursion.
//!
//! Python's unpickler then makes the values. It, too, resolves names by the receiver's list. The check does not compute
//! hashes. Instead it counts the keys for which a sender can choose equal hashes, because each of these would be
//! compared with all others.

mod values;

use values::{DictParts, MadeObject, TupleParts, Value};

/// Uses of a named object that a pickle may make.
pub mod uses {
    /// Contain it as a value.
    pub const VALUE: u8 = 1;
    /// Call it, or make an object of this class.
    pub const CALL: u8 = 2;
    /// Set the state of the objects that it makes.
    pub const STATE: u8 = 4;
    /// Set a state only without attributes named `__x__`, except `__notes__`. With [`STATE`].
    pub const USUAL_STATE: u8 = 8;
    /// Add items to the objects that it makes.
    pub const ITEMS: u8 = 16;
    /// Call it to get a class of the receiver, with which all of the above may be done.
    pub const CLASS: u8 = 32;
    /// Objects that it makes are freed by recursion, without the limit that lists, dicts and objects of Python classes
    /// have.
    pub const FRAIL: u8 = 64;
    /// Uses of a class of the receiver.
    pub const OF_CLASS: u8 = VALUE | CALL | STATE | ITEMS;
}

/// Largest number of values in a key of a dict or an item of a set; each visit of a value by the hash counts.
const KEY_VALUES_MAX: u32 = 10_000;
/// The hashes of all keys may visit this many values for each byte of the pickle, and [`HASHED_MAX`] more.
const HASHED_PER_BYTE_MAX: u64 = 64;
const HASHED_MAX: u64 = 1_000_000;
/// Largest number of frail objects that may be nested directly in each other.
const FRAIL_HEIGHT_MAX: u16 = 200;
/// Largest number of times that a frail object may be put into a frail object that is itself in another frail object,
/// as in a cycle: each time may double the height.
const FRAIL_LATE_MAX: u16 = 20;

/// Reason why a pickle is refused. `E`: the receiver's reason to refuse a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PickleRefusal<E> {
    /// The receiver does not admit a name.
    Name(E),
    /// Fault of the operation at this offset.
    Operation(usize, &'static str),
}

/// A refused operation.
type Refused = &'static str;

struct Check<'a> {
    pickle: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    /// Lengths of the stack at its marks.
    marks: Vec<usize>,
    memo: Vec<Value>,
    objects: Vec<MadeObject>,
    dicts: Vec<DictParts>,
    /// Number of values that hashes have visited.
    hashed: u64,
    /// Number of keys other than texts: a sender can predict their hashes, while hashes of texts are secret.
    predictable: u64,
    /// Whether a dict got a special key when it was in a tuple.
    is_late_special: bool,
    /// Number of times that a frail object was put into a frail object that was itself in another frail object.
    late_links: u16,
}

/// Checks a pickle; `look` returns the [`uses`] of a name in a module. Returns the number of keys, and of items of
/// sets, whose hashes the sender may have chosen.
pub fn check<E>(pickle: &[u8], look: impl FnMut(&str, &str) -> Result<u8, E>) -> Result<u64, PickleRefusal<E>> {
    let mut check = Check {
        pickle,
        at: 0,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
        objects: Vec::new(),
        dicts: Vec::new(),
        hashed: 0,
        predictable: 0,
        is_late_special: false,
        late_links: 0,
    };
    check.run(look)?;
    Ok(check.predictable)
}

impl<'a> Check<'a> {
    fn run<E>(&mut self, mut look: impl FnMut(&str, &str) -> Result<u8, E>) -> Result<(), PickleRefusal<E>> {
        if !matches!(self.take(2), Ok([0x80, 4 | 5])) {
            return Err(PickleRefusal::Operation(0, "its protocol is neither 4 nor 5"));
        }
        loop {
            let start = self.at;
            let refused = |why| PickleRefusal::Operation(start, why);
            let operation = self.take(1).map_err(refused)?[0];
            match operation {
                b'.' => return self.stop().map_err(refused),
                0x93 => {
                    let (module, name) = self.global().map_err(refused)?;
                    let uses = look(module, name).map_err(PickleRefusal::Name)?;
                    self.stack.push(Value::Name(uses));
                }
                other => self.step(other).map_err(refused)?,
            }
        }
    }

    fn step(&mut self, operation: u8) -> Result<(), Refused> {
        match operation {
            b'N' | 0x88 | 0x89 | 0x97 => self.push(Value::Plain),
            b'K' => self.plain(1),
            b'M' => self.plain(2),
            b'J' => self.plain(4),
            b'G' => self.plain(8),
            0x8a | b'C' => self.counted(1).map(|_| self.stack.push(Value::Plain)),
            0x8b | b'B' => self.counted(4).map(|_| self.stack.push(Value::Plain)),
            0x8e | 0x96 => self.counted(8).map(|_| self.stack.push(Value::Plain)),
            0x8c => self.text(1),
            b'X' => self.text(4),
            0x8d => self.text(8),
            // A frame only says how much may be read at once.
            0x95 => {
                let bytes = self.number(8)?;
                (bytes <= self.pickle.len() - self.at)
                    .then_some(())
                    .ok_or("it ends early")
            }
            b']' => self.push(Value::List),
            0x8f => self.push(Value::Set),
            b'}' => {
                let number = u32::try_from(self.dicts.len()).map_err(|_| "it has too many dicts")?;
                self.dicts.push(DictParts::default());
                self.push(Value::Dict(number))
            }
            b')' => self.tuple(0),
            0x85..=0x87 => self.tuple(usize::from(operation - 0x84)),
            b't' => {
                let number = self.above_mark()?;
                self.tuple(number)
            }
            0x91 => {
                let number = self.above_mark()?;
                self.keys(number, 1)?;
                self.tuple(number)
            }
            b'a' => self.append(1),
            b'e' => {
                let number = self.above_mark()?;
                self.append(number)
            }
            0x90 => {
                let number = self.above_mark()?;
                self.add(number)
            }
            b's' => self.set_items(2),
            b'u' => {
                let number = self.above_mark()?;
                self.set_items(number)
            }
            b'(' => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'0' => self.pop().map(drop),
            b'1' => {
                let number = self.above_mark()?;
                self.stack.truncate(self.stack.len() - number);
                Ok(())
            }
            b'R' | 0x81 => self.call(0),
            0x92 => match self.pop()? {
                Value::Dict(named) => self.call(self.dicts[named as usize].height),
                _ => Err("the named arguments of a call are no dict"),
            },
            b'b' => self.build(),
            0x94 => {
                let top = self.top()?;
                self.memo.push(top);
                Ok(())
            }
            b'h' => self.recall(1),
            b'j' => self.recall(4),
            0x98 => self.top().map(drop),
            _ => Err("results do not need this operation"),
        }
    }

    fn stop(&mut self) -> Result<(), Refused> {
        let value = self.pop()?;
        Self::admit(value)?;
        match self.stack.is_empty() && self.marks.is_empty() && self.at == self.pickle.len() {
            true => Ok(()),
            false => Err("more follows its value"),
        }
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Refused> {
        let end = self.at.checked_add(bytes).ok_or("it ends early")?;
        let taken = self.pickle.get(self.at..end).ok_or("it ends early")?;
        self.at = end;
        Ok(taken)
    }

    fn number(&mut self, bytes: usize) -> Result<usize, Refused> {
        let mut word = [0; 8];
        word[..bytes].copy_from_slice(self.take(bytes)?);
        usize::try_from(u64::from_le_bytes(word)).map_err(|_| "it ends early")
    }

    /// Takes bytes whose number is given by the `bytes` bytes before them.
    fn counted(&mut self, bytes: usize) -> Result<&'a [u8], Refused> {
        let length = self.number(bytes)?;
        self.take(length)
    }

    fn plain(&mut self, bytes: usize) -> Result<(), Refused> {
        self.take(bytes)?;
        self.push(Value::Plain)
    }

    fn text(&mut self, bytes: usize) -> Result<(), Refused> {
        let length = self.counted(bytes)?.len();
        let short = u16::try_from(length).map(|length| Value::Text(self.at - usize::from(length), length));
        self.push(short.unwrap_or(Value::Plain))
    }

    fn text_of(&self, value: Value) -> Option<&'a [u8]> {
        match value {
            Value::Text(start, length) => self.pickle.get(start..start + usize::from(length)),
            _ => None,
        }
    }

    fn push(&mut self, value: Value) -> Result<(), Refused> {
        self.stack.push(value);
        Ok(())
    }

    /// Values above the last mark, or on the whole stack.
    fn reachable(&self) -> usize {
        self.stack.len() - self.marks.last().unwrap_or(&0)
    }

    fn top(&self) -> Result<Value, Refused> {
        let top = self.stack.last().filter(|_| self.reachable() > 0);
        top.copied().ok_or("it uses a value that is not there")
    }

    fn pop(&mut self) -> Result<Value, Refused> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    /// Removes the last mark; returns the number of values above it.
    fn above_mark(&mut self) -> Result<usize, Refused> {
        let mark = self.marks.pop().ok_or("it uses a mark that is not there")?;
        Ok(self.stack.len() - mark)
    }

    /// The last values of the stack.
    fn last(&self, number: usize) -> Result<&[Value], Refused> {
        match number <= self.reachable() {
            true => Ok(&self.stack[self.stack.len() - number..]),
            false => Err("it uses a value that is not there"),
        }
    }

    /// Checks that a value may be a part of other values.
    fn admit(value: Value) -> Result<(), Refused> {
        match value {
            Value::Name(uses) if uses & uses::VALUE == 0 => Err("it contains a function, not its result"),
            _ => Ok(()),
        }
    }

    /// Number of values that the hash of `value` visits.
    fn weight(value: Value) -> u32 {
        match value {
            Value::Tuple(parts) => parts.weight,
            _ => 1,
        }
    }

    fn tuple(&mut self, number: usize) -> Result<(), Refused> {
        let mut parts = TupleParts {
            weight: 1,
            ..TupleParts::default()
        };
        let start = self.stack.len() - self.last(number)?.len();
        for at in start..self.stack.len() {
            let part = self.stack[at];
            Self::admit(part)?;
            parts.weight = parts.weight.saturating_add(Self::weight(part));
            if let Value::Dict(dict) = part {
                let dict = &mut self.dicts[dict as usize];
                dict.is_in_tuple = true;
                parts.is_special |= dict.is_special;
            }
            parts.height = parts.height.max(self.part_height(part));
        }
        self.stack.truncate(start);
        self.push(Value::Tuple(parts))
    }

    /// Height of a frail object that becomes a part of another value; 0 if it is not frail.
    fn part_height(&mut self, part: Value) -> u16 {
        match part {
            Value::Object(object) => {
                let object = &mut self.objects[object as usize];
                object.is_part |= object.height > 0;
                object.height
            }
            _ => 0,
        }
    }

    /// Puts a frail object of this height directly into another frail object.
    fn link(&mut self, to: u32, height: u16) -> Result<(), Refused> {
        let to = &mut self.objects[to as usize];
        if to.height == 0 || height == 0 {
            return Ok(());
        }
        self.late_links += u16::from(to.is_part);
        to.height = to.height.max(height + 1);
        match to.height <= FRAIL_HEIGHT_MAX && self.late_links <= FRAIL_LATE_MAX {
            true => Ok(()),
            false => Err("its objects are too deep in each other"),
        }
    }

    /// Checks every `step`th of the last values as keys.
    fn keys(&mut self, number: usize, step: usize) -> Result<(), Refused> {
        let keys = self.last(number)?.iter().step_by(step);
        let (mut heaviest, mut all, mut predictable) = (0, 0, 0);
        for key in keys.copied() {
            let weight = Self::weight(key);
            heaviest = heaviest.max(weight);
            all += u64::from(weight);
            predictable += u64::from(!matches!(key, Value::Text(..)));
        }
        self.hashed += all;
        self.predictable += predictable;
        match heaviest <= KEY_VALUES_MAX && self.hashed <= HASHED_MAX + HASHED_PER_BYTE_MAX * self.pickle.len() as u64 {
            true => Ok(()),
            false => Err("a key has too many parts"),
        }
    }

    /// Removes items; returns the object below them, which stays, and the height of the highest frail item.
    fn items(&mut self, number: usize) -> Result<(Value, u16), Refused> {
        let start = self.stack.len() - self.last(number)?.len();
        let mut height = 0;
        for at in start..self.stack.len() {
            Self::admit(self.stack[at])?;
            height = height.max(self.part_height(self.stack[at]));
        }
        self.stack.truncate(start);
        Ok((self.top()?, height))
    }

    fn append(&mut self, number: usize) -> Result<(), Refused> {
        match self.items(number)? {
            (Value::List, _) => Ok(()),
            (to, height) => self.takes_items(to, height),
        }
    }

    fn add(&mut self, number: usize) -> Result<(), Refused> {
        self.keys(number, 1)?;
        match self.items(number)? {
            (Value::Set, _) => Ok(()),
            (to, height) => self.takes_items(to, height),
        }
    }

    fn set_items(&mut self, number: usize) -> Result<(), Refused> {
        if !number.is_multiple_of(2) {
            return Err("a key has no value");
        }
        self.keys(number, 2)?;
        let keys = self.last(number)?.iter().step_by(2);
        let is_special = keys.copied().any(|key| self.may_be_special(key));
        match self.items(number)? {
            (Value::Dict(dict), height) => {
                let dict = &mut self.dicts[dict as usize];
                dict.is_special |= is_special;
                dict.height = dict.height.max(height);
                self.is_late_special |= is_special && dict.is_in_tuple;
                Ok(())
            }
            (to, height) => self.takes_items(to, height),
        }
    }

    /// Whether a key may be the name of a special attribute. An object may be a text, too, like numpy's `str_`.
    fn may_be_special(&self, key: Value) -> bool {
        match key {
            Value::Text(..) => self.text_of(key).is_some_and(is_special),
            Value::Object(_) | Value::Name(_) => true,
            _ => false,
        }
    }

    fn takes_items(&mut self, to: Value, height: u16) -> Result<(), Refused> {
        match to {
            Value::Object(object) if self.objects[object as usize].uses & uses::ITEMS != 0 => self.link(object, height),
            _ => Err("it adds items to what takes none"),
        }
    }

    /// `named`: height of the highest frail object among the named arguments.
    fn call(&mut self, named: u16) -> Result<(), Refused> {
        let (arguments, callable) = (self.pop()?, self.pop()?);
        let Value::Tuple(arguments) = arguments else {
            return Err("the arguments of a call are no tuple");
        };
        let Value::Name(uses) = callable else {
            return Err("it calls a value");
        };
        if uses & uses::CLASS != 0 {
            return self.push(Value::Name(uses::OF_CLASS | uses::USUAL_STATE)); // It may be an exception.
        }
        if uses & uses::CALL == 0 {
            return Err("it calls a class that is only a value");
        }
        let object = u32::try_from(self.objects.len()).map_err(|_| "it has too many objects")?;
        self.objects.push(MadeObject {
            uses,
            height: u16::from(uses & uses::FRAIL != 0),
            is_part: false,
        });
        self.link(object, arguments.height.max(named))?;
        self.push(Value::Object(object))
    }

    fn build(&mut self) -> Result<(), Refused> {
        let state = self.pop()?;
        Self::admit(state)?;
        let Value::Object(object) = self.top()? else {
            return Err("it sets the state of what it did not make");
        };
        let (is_special, height) = match state {
            Value::Dict(dict) => {
                let dict = self.dicts[dict as usize];
                (dict.is_special, dict.height)
            }
            Value::Tuple(parts) => (parts.is_special || self.is_late_special, parts.height),
            // The object may be a dict of another kind.
            Value::Object(_) => (true, self.part_height(state)),
            _ => (false, 0),
        };
        let uses = &mut self.objects[object as usize].uses;
        if *uses & uses::STATE == 0 {
            return Err("it sets the state of an object that has none, or has it already");
        }
        if *uses & uses::USUAL_STATE != 0 && is_special {
            return Err("it sets a special attribute of an exception, or a state that is no dict or tuple");
        }
        *uses &= !(uses::STATE | uses::ITEMS);
        self.link(object, height)
    }

    fn recall(&mut self, bytes: usize) -> Result<(), Refused> {
        let number = self.number(bytes)?;
        let known = self.memo.get(number).copied();
        self.push(known.ok_or("it uses a value that is not there")?)
    }

    /// Module and name of a global.
    fn global(&mut self) -> Result<(&'a str, &'a str), Refused> {
        let (name, module) = (self.pop()?, self.pop()?);
        let text = |value| std::str::from_utf8(self.text_of(value)?).ok();
        text(module).zip(text(name)).ok_or("a name is no text")
    }
}

/// Whether the interpreter gives an attribute of this name a meaning.
fn is_special(name: &[u8]) -> bool {
    name.starts_with(b"__") && name != b"__notes__"
}

#[cfg(test)]
mod tests;
