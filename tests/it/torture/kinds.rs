//! What beside faults of servers, wires and processes is done; each kind can be left out.

use crate::harness::load::Kind;

#[derive(Clone, Copy, Debug)]
pub struct Kinds {
    /// A second publisher always runs, and either may be hit.
    pub take_overs: bool,
    /// The slot is dropped, made anew, moved or invalidated.
    pub slot_loss: bool,
    /// The table is taken out of the publication and put back.
    pub publication: bool,
    /// The table has another name for a while, or a column another type.
    pub schema: bool,
    /// Rows that cannot be published become dead letters, and operators act on them at random.
    pub poison: bool,
}

impl Kinds {
    /// For calm.
    pub fn none() -> Kinds {
        Kinds {
            take_overs: false,
            slot_loss: false,
            publication: false,
            schema: false,
            poison: false,
        }
    }

    /// All but those that `TORTURE_WITHOUT` names, with commas between.
    pub fn wanted() -> Kinds {
        let text = std::env::var("TORTURE_WITHOUT").unwrap_or_default();
        let left_out: Vec<&str> = text.split(',').filter(|name| !name.is_empty()).collect();
        let names = ["take-overs", "slot-loss", "publication", "schema", "poison"];
        for name in &left_out {
            assert!(names.contains(name), "{name:?} is none of {names:?}");
        }
        let [take_overs, slot_loss, publication, schema, poison] =
            names.map(|name| !left_out.contains(&name));
        Kinds {
            take_overs,
            slot_loss,
            publication,
            schema,
            poison,
        }
    }

    /// Without those that are left out.
    pub fn of(self, all: &[Kind]) -> Vec<Kind> {
        let is_wanted = |kind: &&Kind| match kind {
            Kind::Alter => self.schema,
            Kind::Poison => self.poison,
            _ => true,
        };
        all.iter().filter(is_wanted).copied().collect()
    }
}
