//! A set of event ids that costs some 16 bytes each, whatever they look like.

use std::{
    collections::HashSet,
    hash::{BuildHasher, Hasher, RandomState},
};

/// What is remembered of an id.
pub(super) type Digest = (u64, u64);

/// Remembers 128 bits of each id, made with keys of this process: two different ids are taken for
/// one with a chance of about 1 in 10^20 for a billion of them.
#[derive(Default)]
pub struct EventIds {
    ids: HashSet<Digest>,
    keys: (RandomState, RandomState),
}

impl EventIds {
    /// An empty set that knows ids as `other` does.
    pub fn like(other: &EventIds) -> Self {
        EventIds {
            ids: HashSet::new(),
            keys: other.keys.clone(),
        }
    }

    pub(super) fn digest(&self, id: &[u8]) -> Digest {
        let one = |keys: &RandomState| {
            let mut hasher = keys.build_hasher();
            hasher.write(id);
            hasher.finish()
        };
        (one(&self.keys.0), one(&self.keys.1))
    }

    /// `false` when it was there.
    pub fn insert(&mut self, id: &[u8]) -> bool {
        self.ids.insert(self.digest(id))
    }

    /// A digest of this set, or of one that it is like.
    pub(super) fn add(&mut self, digest: Digest) {
        self.ids.insert(digest);
    }

    /// Takes in all of another set that this one is like.
    pub fn extend(&mut self, other: EventIds) {
        self.ids.extend(other.ids);
    }

    pub fn contains(&self, id: &[u8]) -> bool {
        !self.ids.is_empty() && self.ids.contains(&self.digest(id))
    }

    pub fn len(&self) -> usize {
        self.ids.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_what_was_put_in() {
        let mut ids = EventIds::default();
        assert!(!ids.contains(b"a"));
        assert!(ids.insert(b"a") && !ids.insert(b"a") && ids.insert(b""));
        assert!(ids.contains(b"a") && ids.contains(b"") && !ids.contains(b"b"));
        let mut found = EventIds::like(&ids);
        found.insert(b"a");
        assert_eq!((ids.len(), found.len()), (2, 1));
    }
}
