//! The directives that hold at a place: those of its block and of the blocks around it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::syntax::NginxDirective;

/// One block, with its directives by name.
#[derive(Debug)]
struct BlockIndex<'a> {
    all: &'a [NginxDirective],
    by_name: BTreeMap<&'a str, Vec<&'a NginxDirective>>,
}

/// Blocks within blocks, the outermost first.
#[derive(Debug, Clone)]
pub(super) struct NginxScope<'a> {
    blocks: Vec<Rc<BlockIndex<'a>>>,
    /// How many directives were looked at, in all scopes of an import together.
    looked_at: Rc<Cell<usize>>,
}

impl<'a> NginxScope<'a> {
    /// The outermost block.
    pub(super) fn new(directives: &'a [NginxDirective]) -> Self {
        let outer = Self {
            blocks: Vec::new(),
            looked_at: Rc::default(),
        };
        outer.within(directives)
    }

    /// A block within this one.
    pub(super) fn within(&self, directives: &'a [NginxDirective]) -> Self {
        let mut by_name: BTreeMap<&'a str, Vec<&'a NginxDirective>> = BTreeMap::new();
        for directive in directives {
            by_name
                .entry(directive.name.as_str())
                .or_default()
                .push(directive);
        }
        let mut blocks = self.blocks.clone();
        blocks.push(Rc::new(BlockIndex {
            all: directives,
            by_name,
        }));
        Self {
            blocks,
            looked_at: Rc::clone(&self.looked_at),
        }
    }

    /// How many directives were looked at so far.
    pub(super) fn work(&self) -> usize {
        self.looked_at.get()
    }

    /// The directives of the innermost block.
    pub(super) fn own(&self) -> &'a [NginxDirective] {
        self.blocks.last().map_or(&[], |block| block.all)
    }

    /// Those of a name in the innermost block.
    pub(super) fn own_named(&self, name: &str) -> &[&'a NginxDirective] {
        let block = self.blocks.last();
        block
            .and_then(|block| block.by_name.get(name))
            .map_or(&[], Vec::as_slice)
    }

    /// The directive of a name in the nearest block that has one.
    pub(super) fn find(&self, name: &str) -> Option<&'a NginxDirective> {
        self.find_all(name).last().copied()
    }

    /// All directives of a name in the nearest block that has some: nginx inherits them whole.
    pub(super) fn find_all(&self, name: &str) -> &[&'a NginxDirective] {
        let blocks = self.blocks.iter().rev();
        let found = blocks.filter_map(|block| block.by_name.get(name)).next();
        let found = found.map_or(&[][..], Vec::as_slice);
        self.looked_at
            .set(self.looked_at.get().saturating_add(1 + found.len()));
        found
    }

    /// All directives of a name in all blocks, the outermost first.
    pub(super) fn everywhere(&self, name: &str) -> Vec<&'a NginxDirective> {
        let blocks = self
            .blocks
            .iter()
            .filter_map(|block| block.by_name.get(name));
        blocks.flatten().copied().collect()
    }

    /// Whether `name on;` holds.
    pub(super) fn is_on(&self, name: &str) -> bool {
        self.find(name)
            .is_some_and(|directive| directive.arg(0) == "on")
    }
}
