%% Records whose content their number and version give, in four processes and an ETS table:
%%   erl -noshell -s records main RECORDS ROUNDS
-module(records).
-export([main/1]).

random(X) -> X * 48271 rem 2147483647.

words(0, _, Words) -> lists:reverse(Words);
words(N, X, Words) -> Y = random(X), words(N - 1, Y, [integer_to_binary(Y, 16), <<" ">> | Words]).

content(I, Version) ->
    Words = iolist_to_binary(words(6, random(I * 31 + Version * 7919 + 1), [])),
    Head = io_lib:format("record ~b version ~b ", [I, Version]),
    iolist_to_binary([Head, binary:copy(Words, 8)]).

%% Binaries live outside of the process' heap, lists of characters inside.
make(I, Version) ->
    Text = content(I, Version),
    ets:insert(table, {{self(), I}, Text}),
    {Version, I, binary_to_list(Text)}.

check({Version, I, List} = Record, Round) ->
    Text = content(I, Version),
    [{_, Kept}] = ets:lookup(table, {self(), I}),
    case Kept =:= Text andalso List =:= binary_to_list(Text) of
        true when I rem 3 =:= Round rem 3 -> make(I, Version + 1);
        true -> Record;
        false -> io:format("BAD record ~b in round ~b~n", [I, Round]), halt(1)
    end.

rounds(All, Round, Round) -> erlang:phash2([{V, I} || {V, I, _} <- All]);
rounds(All, Round, Rounds) ->
    timer:sleep(500),
    Next = [check(Record, Round) || Record <- All],
    erlang:garbage_collect(),
    rounds(Next, Round + 1, Rounds).

main([Records, Rounds]) ->
    N = list_to_integer(atom_to_list(Records)),
    R = list_to_integer(atom_to_list(Rounds)),
    ets:new(table, [public, named_table]),
    Me = self(),
    Work = fun() -> Me ! {sum, rounds([make(I, 0) || I <- lists:seq(1, N)], 0, R)} end,
    [spawn_link(Work) || _ <- lists:seq(1, 4)],
    Sums = [receive {sum, Sum} -> Sum end || _ <- lists:seq(1, 4)],
    io:format("OK ~b~n", [lists:sum(Sums)]),
    halt(0).
