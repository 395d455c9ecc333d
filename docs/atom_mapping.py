"""Does the audit find a head whose job is published? The page docs/audit-ground-truth.md, as a program.

Run ``python docs/atom_mapping.py FOLDER`` with the folder of the ALBERT that the package rxnmapper carries
(``rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k``). The model reads chemical reactions as SMILES; its
authors found that head 5 of layer 10 (counted from 0) maps atoms of the product to those of the reactants. The 24
reactions are textbook ones, written for this page.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import transformers

import mirrormax as mm
from mirrormax.auditing import Head, Vocabulary, adapter_for, watching
from mirrormax.auditing.robustness import selections

PUBLISHED = "10.5"
REACTIONS = """
CC(=O)O.OCC>>CC(=O)OCC
CC(=O)Cl.NCC>>CC(=O)NCC
c1ccccc1B(O)O.Brc1ccncc1>>c1ccc(-c2ccncc2)cc1
CCCBr.[Na]I>>CCCI
O=C(O)c1ccccc1.NCc1ccccc1>>O=C(NCc1ccccc1)c1ccccc1
CC(C)=O>>CC(C)O
O=Cc1ccccc1.NC1CCCCC1>>C(c1ccccc1)NC1CCCCC1
Oc1ccccc1.BrCc1ccccc1>>c1ccc(COc2ccccc2)cc1
CC(C)(C)OC(=O)N1CCNCC1.O=C(Cl)c1ccco1>>CC(C)(C)OC(=O)N1CCN(C(=O)c2ccco2)CC1
CC(C)(C)OC(=O)NCC(=O)O>>NCC(=O)O
COC(=O)c1ccc(Br)cc1>>O=C(O)c1ccc(Br)cc1
O=[N+]([O-])c1ccccc1>>Nc1ccccc1
Clc1ncccn1.NCCO>>OCCNc1ncccn1
CS(=O)(=O)Cl.OCCC1CC1>>CS(=O)(=O)OCCC1CC1
C=CC(=O)OC.NC1CC1>>COC(=O)CCNC1CC1
O=C1CCCCC1.C[Mg]Br>>CC1(O)CCCCC1
CC#C.Ic1ccccc1>>CC#Cc1ccccc1
O=C=Nc1ccccc1.NCC>>CCNC(=O)Nc1ccccc1
OCc1ccccc1>>O=Cc1ccccc1
N#Cc1ccc(F)cc1.C1COCCN1>>N#Cc1ccc(N2CCOCC2)cc1
O=C(O)CCl.Sc1ccccc1>>O=C(O)CSc1ccccc1
CN1CCNCC1.O=S(=O)(Cl)c1ccc(C)cc1>>Cc1ccc(S(=O)(=O)N2CCN(C)CC2)cc1
CCOC(=O)CC(=O)OCC.BrCCC>>CCCC(C(=O)OCC)C(=O)OCC
O=C(CBr)c1ccccc1.NC(N)=S>>Nc1nc(-c2ccccc2)cs1
""".split()  # noqa: SIM905 - one line each is what a reader can check
TOKEN = re.compile(r"\[[^\]]+\]|Br|Cl|>>|%\d\d|.")
ELEMENT = re.compile(r"\[?\d*(Br|Cl|Na|Mg|[A-Z]|[a-z])")


def element(token: str) -> str | None:
    """The element of an atom's token, aromatic or not; None for bonds, digits and brackets."""
    found = ELEMENT.match(token)
    return found[1].capitalize() if found else None


def same_element(tokens: list[str], selected: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Of the product's atoms, how many select a reactant's atom of their element, by head (T, heads) to (heads,)."""
    arrow = tokens.index(">>")
    kinds = [element(token) if token not in ("[CLS]", "[SEP]") else None for token in tokens]
    atoms = [k for k in range(arrow, len(tokens)) if kinds[k]]
    right = torch.zeros(selected.shape[1])
    for k in atoms:
        right += torch.tensor([int(t) < arrow and kinds[int(t)] == kinds[k] for t in selected[k]]).float()
    return right, len(atoms)


def main(folder: Path) -> None:
    """Audit the model without labels, and print the published head's rank by each criterion."""
    config = transformers.AlbertConfig(**json.loads((folder / "config.json").read_text("utf-8")))
    model = transformers.AlbertModel(config).eval()
    state = torch.load(folder / "pytorch_model.bin", weights_only=True, map_location="cpu")
    own = {name.removeprefix("albert."): part for name, part in state.items() if name.startswith("albert.")}
    missing = model.load_state_dict(own, strict=False).missing_keys
    if [name for name in missing if "pooler" not in name]:
        raise ValueError(f"{folder} has no weights for {missing[0]}; give the folder of the whole model.")
    words = (folder / "vocab.txt").read_text("utf-8").splitlines()
    number = {word: k for k, word in enumerate(words)}
    texts = [["[CLS]", *TOKEN.findall(reaction), "[SEP]"] for reaction in REACTIONS]
    rows = [torch.tensor([[number.get(token, number["[UNK]"]) for token in text]]) for text in texts]
    batches = [{"input_ids": row, "attention_mask": torch.ones_like(row)} for row in rows]
    parting = [number[word] for word in (".", ">>", "[CLS]", "[SEP]")]
    vocabulary = Vocabulary(lambda ids: [words[k] for k in ids], separators=parting)
    found = mm.audit(model, batches, vocabulary=vocabulary, robustness=("int8", "int4"), controls=0, examples=0)

    with watching(adapter_for(model)) as watch:
        every = [
            same_element(text, torch.cat(selections(watch, row), 1)) for text, row in zip(texts, batches, strict=True)
        ]
    atoms = sum(count for _, count in every)
    right = (torch.stack([one for one, _ in every]).sum(0) / atoms).tolist()
    truth = dict(zip([head.name for head in found.heads], right, strict=True))
    flips = {(f"{one.layer}.{one.head}", one.scheme): one.predicted for one in found.robustness}
    criteria: dict[str, Callable[[Head], float]] = {
        "same element (uses the task)": lambda head: truth[head.name],
        "attention on the selected token": lambda head: head.mass,
        "low entropy": lambda head: -head.entropy,
        "realised margin": lambda head: head.margin,
        "ratio to the optimal margin": lambda head: head.ratio,
        "few changes by int8, predicted": lambda head: -flips[head.name, "int8"],
        "few changes by int4, predicted": lambda head: -flips[head.name, "int4"],
    }
    head = found.head(PUBLISHED)
    print(f"{len(found.heads)} heads; kind of {PUBLISHED}: {head.kind or 'no clear pattern'}", end="")
    print(f", as of {sum(other.kind == head.kind for other in found.heads)} heads.\n")
    print(f"| criterion | rank of {PUBLISHED} | its value | first by it |\n|---|---|---|---|")
    for name, value in criteria.items():
        order = sorted(found.heads, key=lambda head: -value(head))
        rank = 1 + [head.name for head in order].index(PUBLISHED)
        own, best = (abs(value(one)) for one in (head, order[0]))
        print(f"| {name} | {rank} of {len(order)} | {own:.3g} | {order[0].name}: {best:.3g} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
