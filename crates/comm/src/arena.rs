//! Table of numbered items: a number is valid until its item is removed, and is never used again.

/// Number of an item: its place in the table, and the generation of that place.
pub type Key = u64;

/// Table of numbered items.
pub(crate) struct Arena<T> {
    entries: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Arena<T> {
    pub(crate) const fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, thing: T) -> Key {
        let place = self.free.pop().unwrap_or_else(|| {
            self.entries.push((0, None));
            self.entries.len() as u32 - 1
        });
        let (generation, entry) = &mut self.entries[place as usize];
        *entry = Some(thing);
        u64::from(*generation) << 32 | u64::from(place)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let (generation, entry) = self.entries.get_mut(key as u32 as usize)?;
        entry.as_mut().filter(|_| u64::from(*generation) == key >> 32)
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let (generation, entry) = self.entries.get(key as u32 as usize)?;
        entry.as_ref().filter(|_| u64::from(*generation) == key >> 32)
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        self.get(key)?;
        let (generation, entry) = &mut self.entries[key as u32 as usize];
        *generation = generation.wrapping_add(1);
        self.free.push(key as u32);
        entry.take()
    }

    /// Numbers of the items for which the predicate is true.
    pub(crate) fn keys(&self, is_meant: impl Fn(&T) -> bool) -> Vec<Key> {
        let keys = self.entries.iter().enumerate().filter_map(|(place, entry)| {
            let (generation, thing) = entry;
            let is_meant = thing.as_ref().is_some_and(&is_meant);
            is_meant.then_some(u64::from(*generation) << 32 | place as u64)
        });
        keys.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_good_once() {
        let mut slots = Arena::new();
        let first = slots.insert("first");
        assert_eq!(slots.remove(first), Some("first"));
        let second = slots.insert("second");
        assert_ne!(first, second, "the place is the same, the number is not");
        assert_eq!(slots.get(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!((slots.get(second), slots.len()), (Some(&"second"), 1));
        assert_eq!(slots.keys(|_| true), [second]);
    }
}
