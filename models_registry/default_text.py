"""The text that a model reads where nobody gives another one: facts that come early and are asked for late."""

from __future__ import annotations

DEFAULT_TEXT = """\
The lighthouse on Skarv Island was built in 1871 of grey granite that came by ship from the quarry at Hollen. \
Its first keeper was a woman named Ingrid Vass, who had been a schoolteacher and who kept a log in green ink. \
Every evening she wrote down four things: the wind, the height of the tide, the ships that had passed, and one \
sentence that had nothing to do with any of them. The four things were always in the same order, and the \
sentence was always the last.

On the third of March she wrote: wind from the north-west, strong; tide at two metres and forty; the Corona, the \
Anna Maria and a fishing boat without a name; and then, that the cat had learned to open the pantry. On the \
fourth of March she wrote: wind from the north-west, falling; tide at two metres and ten; no ships; and then, \
that she had moved the butter. On the fifth of March she wrote: wind from the west, light; tide at one metre and \
ninety; the Corona, coming back; and then, that the cat had found the butter.

Visitors were rare. In the summer of 1874 a painter from the mainland stayed for six weeks and painted the tower \
forty times, always from the same rock. He said that the granite was never the same grey twice. When he left, he \
gave her one of the forty pictures, and she hung it in the stairwell, on the seventh landing, where the light \
from the small window reaches it for an hour each afternoon. The picture is still there. The rock is under water \
now, except at the lowest tides of the year.

How does a light like that work? A lamp with five wicks stands in the middle of a lens as tall as a door. The \
lens is made of rings of glass, each of which bends the light a little more than the one inside it, so that all \
of it leaves the tower in the same direction. The lens turns once in forty seconds on a bath of mercury, and \
because it has four faces, a ship sees a flash every ten seconds. A keeper winds the clockwork that turns it \
every three hours, which means three times in a summer night and five times in a winter night. If the clockwork \
stops, the light stands still, and a light that stands still is mistaken for a star.

A list of what was in the storeroom, as the inspector counted it in 1880: 12 barrels of oil; 9 spare wicks; 4 \
panes of glass; 2 clocks, of which 1 was broken; 31 candles; 1 flag for each of the letters from A to Z, except \
for Q, which had been eaten by moths. The inspector asked for a new Q in 1880, in 1881 and in 1883. It came in \
1884, together with a second flag for the letter A, which nobody had asked for.

In the autumn of 1889 there was fog for eleven days. A light can't be seen in fog, so the keepers fired a gun, \
once every ten minutes by day and by night. On the ninth day the gun cracked. Ingrid Vass took the largest of \
the cooking pots up to the gallery and struck it with a hammer, once every ten minutes, for the two days that \
were left. The log of those days has the wind, which was nothing, and the tide, and no ships, and as the last \
sentence of the eleventh day: the cat has not come down from the lamp room since Tuesday. The Corona reached the \
harbour on the twelfth day. Her captain said that he had steered by the sound of somebody cooking.

Ingrid Vass kept the light for twenty-six years. The keeper who came after her, Peder Holm, used black ink, and \
wrote the same four things in the same order. In his first year his last sentences were about the weather. In \
his second year they were about the cat. The light has had no keeper since 1962, and the log is in the museum at \
Hollen, open at the third of March: the wind, the tide, the ships, and the pantry.
"""
